"""The files of `deploy/`."""
