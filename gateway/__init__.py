"""The only package that knows Litestar: the app, its routes, routing between backends, configuration and the CLI."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("interlingua")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
