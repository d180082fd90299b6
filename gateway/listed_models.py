"""Endpoints for the models that servers list, where a configuration names none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from backends.remote.options import RemoteOptions
from backends.remote.probe import base_of, list_models, probe
from gateway.config import BUNDLED, Config, ConfigError, Endpoint, endpoints_for, remote
from schemas.errors import GatewayError


def probed(url: str, key_env: str | None, names: Sequence[str] = ()) -> Config:
    """A configuration that serves the models of the server at `url`, whose kind is probed.

    Raises:
        ConfigError: the server does not answer, or has no model that can be served.
    """
    # `127.0.0.1:8001`, as it is typed.
    url = url if "://" in url else f"http://{url}"
    try:
        found = asyncio.run(probe(RemoteOptions(url=url, api_key_env=key_env)))
    except GatewayError as error:
        raise ConfigError(f"--backend {url}: {error.message}") from None
    except ValueError as error:
        raise ConfigError(f"--backend {url}: {error}") from None
    return remote(found.kind, found.url, found.models, key_env, names)


def with_listed(config: Config) -> Config:
    """The configuration; if it has no endpoints, with one for each model that its backends list.

    Raises:
        ConfigError: a server does not answer or lists no model, or two list the same.
    """
    if config.endpoints or config.is_changeable:
        return config
    endpoints: dict[str, Endpoint] = {}
    for name in config.backends:
        models = _models(name, config)
        if not models:
            url, base = str(config.backends[name].get("url", "")), base_of(config.backends[name]["kind"])
            lacks_base = base and url and not url.rstrip("/").endswith(base)
            hint = f"has `url` to end in {base}?" if lacks_base else "name them as endpoints: [endpoints.NAME]"
            raise ConfigError(f"backends.{name}: it lists no models; {hint}")
        if twice := endpoints.keys() & set(models):
            raise ConfigError(f"backends.{name}: another backend lists '{min(twice)}', too; name your endpoints")
        endpoints |= endpoints_for(name, models)
    return msgspec.structs.replace(config, endpoints=endpoints)


def _models(name: str, config: Config) -> Sequence[str]:
    options = {key: value for key, value in config.backends[name].items() if key != "kind"}
    if "url" not in options:  # of this machine
        return (Path(options["model"]).resolve().name if "model" in options else BUNDLED,)
    try:
        return asyncio.run(list_models(config.backends[name]["kind"], msgspec.convert(options, RemoteOptions)))
    except (GatewayError, ValueError) as error:
        raise ConfigError(f"backends.{name}: its models cannot be listed: {error}") from None
