"""What `gateway serve` prints while it starts."""

from __future__ import annotations

import json
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

import click
import msgspec

import gateway
from backends.base import Health
from gateway.config import Config
from gateway.process.service_manager import READY, notify, status

if TYPE_CHECKING:
    from rich.status import Status

_NUMBER = re.compile(r"[0-9.]+")
_MORE_TIME = "EXTEND_TIMEOUT_USEC=30000000"
"""In microseconds: systemd gives up a unit that has not started by `TimeoutStartSec`, and a model may take minutes."""
_NOTICE_INTERVAL = 5.0


class StartupMonitor:
    """Reports how the server starts: where it listens, what it waits for, and examples once it is ready.

    A server with a single backend is stopped if that fails before it was ever ready; among several, the others answer.

    Args:
        config: what is served.
        ports: where the workers listen, in the order of `addresses`.

    Attributes:
        done: whether there is nothing more to report.
    """

    def __init__(self, config: Config, ports: Sequence[int]) -> None:
        self._config = config
        self._port = ports[0]
        self._grpc_port = ports[-1] if config.server.grpc is not None else None
        self.done = False
        self._next_poll = 0.0
        self._next_notice = 0.0
        self._began = time.monotonic()
        self._spinner: Status | None = None
        self._has_greeted = False
        self._stage = ""
        # Never through a proxy of the environment: the address is this machine's. Its certificate is for another name.
        handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_unverified())]
        self._opener = urllib.request.build_opener(*handlers)

    def poll(self) -> bool:
        """Ask for the health once more, at most ten times a second; False if the server is to be stopped."""
        if self.done or time.monotonic() < self._next_poll:
            return True
        # The supervisor calls this between its own steps: an answer takes milliseconds, a worker that hangs costs the
        # timeout of 1 s.
        self._next_poll = time.monotonic() + 0.1
        health = self._health()
        if health is None:
            return True
        # A wrong model path or URL would be retried for ever; at a first start, that is a mistake to report.
        if health.status == "failed" and len(self._config.backends) == 1:
            self._close()
            click.echo(f"Error: {health.detail}", err=True)
            return False
        if not self._has_greeted:
            self._has_greeted = True
            self._greet()
        if health.status == "ready":
            self._close()
            notify(READY, status("ready"))
            self._show_examples()
        else:
            self._notify_progress(health)
            self._report_progress(health)
        return True

    def _health(self) -> Health | None:
        """A worker's health; None if no worker listens yet, or it ended in the middle of its answer."""
        try:
            try:
                answer = self._opener.open(f"{self._url}/health/ready", timeout=1)
            except urllib.error.HTTPError as not_ready:  # 503: not ready, with the reason in the body
                answer = not_ready
            with answer:
                return msgspec.json.decode(answer.read(), type=Health)
        except (OSError, HTTPException, msgspec.DecodeError):
            return None

    @property
    def _url(self) -> str:
        host = self._config.server.host
        # A wildcard address cannot be connected to everywhere.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        scheme = "https" if self._config.server.ssl_certfile is not None else "http"
        return f"{scheme}://[{host}]:{self._port}" if ":" in host else f"{scheme}://{host}:{self._port}"

    def _notify_progress(self, health: Health) -> None:
        if time.monotonic() > self._next_notice:
            self._next_notice = time.monotonic() + _NOTICE_INTERVAL
            # Among several, a backend that failed may come back after days: a unit must not wait for it.
            state = READY if health.status == "failed" else _MORE_TIME
            notify(state, status(f"waiting for {health.detail}"))

    def _report_progress(self, health: Health) -> None:
        if not sys.stderr.isatty():  # a spinner in a log file would be noise: one line for each stage
            stage = _NUMBER.sub("", health.detail)
            if stage != self._stage:
                self._stage = stage
                click.echo(f"waiting for {health.detail}", err=True)
            return
        if self._spinner is None:
            from rich.console import Console

            self._spinner = Console(stderr=True).status("")
            self._spinner.start()
        self._spinner.update(f"waiting for {health.detail}")

    def _close(self) -> None:
        self.done = True
        if self._spinner is not None:
            self._spinner.stop()

    def _greet(self) -> None:
        keys = "a key is needed" if self._config.server.needs_key else "no key needed"
        click.echo(f"\nInterlingua {gateway.__version__} on {self._url}  ({keys})")
        if self._grpc_port is not None:
            click.echo(f"gRPC on port {self._grpc_port}")
        click.echo(f"Models: {', '.join(self._config.endpoints)}")
        click.echo(f"In a browser: {self._url}/ui\n")
        # Into a pipe, standard output is buffered, and the process goes on for days.
        sys.stdout.flush()

    def _show_examples(self) -> None:
        from gateway.mounts import routes
        from gateway.registry import adapters

        click.echo(f"Ready after {time.monotonic() - self._began:.1f} s. Try:\n")
        printed: set[str] = set()
        streams = False
        for protocol, route in routes(adapters()):
            if route.example is None or protocol in printed:
                continue
            printed.add(protocol)
            click.echo(f"# {protocol}\n{self._curl(route.path, route.example)}\n")
            if not streams and "messages" in route.example:
                streams = True
                streamed = self._curl(route.path, route.example | {"stream": True}, "-N ")
                click.echo(f"# {protocol}, as a stream\n{streamed}\n")
        sys.stdout.flush()

    def _curl(self, path: str, example: Mapping[str, Any], option: str = "") -> str:
        model = self._config.server.default or next(iter(self._config.endpoints), "")
        path = re.sub(r"{(model|name)(:path)?}", lambda _: model, path)
        # POSIX shell: a quote inside single quotes.
        body = json.dumps(example).replace("{model}", model).replace("'", "'\\''")
        # In double quotes, for the shell to put a key in.
        key = '-H "authorization: Bearer $KEY" ' if self._config.server.needs_key else ""
        return f"curl {option}{self._url}{path} {key}-H 'content-type: application/json' -d '{body}'"


def _unverified() -> ssl.SSLContext:
    # Not the default one: to read the system's certificates takes 0.05 s.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
