"""The engine process: ``python -m backends.native.engine.serving --socket PATH --model DIR``.

With ``--listen tcp://HOST:PORT`` in the place of ``--socket`` workers of other machines can connect. The environment
variable that ``--secret-env`` names then holds what they must know, too.

It listens before it loads, so that workers can follow the progress; then it steps in the main thread until SIGTERM or
SIGINT, which let the current step finish. Exit code 1 if the model cannot be loaded. The messages on the socket are
those of `protocol.messages`.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import select
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import TYPE_CHECKING

import msgspec
import structlog
from msgspec.structs import replace

from backends.native.engine.serving.engine_thread import Inbox, serve, stop
from backends.native.engine.serving.socket import SocketServer
from backends.native.machine import keep_freed_memory
from backends.native.protocol.addresses import TcpAddress, read_address
from backends.native.protocol.engine_options import EngineOptions, is_json
from backends.native.protocol.greeting import read_secret
from backends.native.protocol.messages import Failed, Loading
from backends.terminal import escaping, renderer

if TYPE_CHECKING:  # it imports torch, and a process listens before that
    from backends.native.engine.serving.management import Loaded


def main(argv: Sequence[str] | None = None) -> int:
    """Run an engine process and return its exit code."""
    address, secret, options, standby = parse(argv)
    configure_log()
    loaded: Loaded | None = None
    if standby is not None:
        loaded = _prepare(options, load=standby == "loaded")
        if not sys.stdin.buffer.readline():  # nobody will call
            return 0
        structlog.get_logger().info("engine.called", loaded=loaded is not None)
    inbox: Inbox = SimpleQueue()
    server = SocketServer(address, inbox, secret=secret)
    if isinstance(address, TcpAddress):
        structlog.get_logger().info("engine.listening", address=str(replace(address, port=server.port)))
    try:
        return _run(options, inbox, server, loaded)
    finally:
        server.close()


def parse(argv: Sequence[str] | None) -> tuple[Path | TcpAddress, bytes | None, EngineOptions, str | None]:
    """Parse the command line: every field of `EngineOptions` is an option of the same name, tables are JSON.

    Returns:
        Where to listen, the secret for that, the options, and what the process does before it waits to be called; None:
        it does not wait.
    """
    parser = argparse.ArgumentParser(prog="python -m backends.native.engine.serving", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", type=Path, help="path of the Unix socket to listen on")
    where.add_argument("--listen", type=read_address, help="tcp://HOST:PORT (or unix:///PATH) to listen on")
    secret_help = "environment variable with the secret of TCP connections, of 16 characters at least"
    parser.add_argument("--secret-env", default="ENGINE_SECRET", help=secret_help)
    standby = "import, or also load the model, and then wait for a line on standard input"
    parser.add_argument("--standby", choices=["imported", "loaded"], help=standby)
    for option in msgspec.structs.fields(EngineOptions):
        flag = f"--{option.name.replace('_', '-')}"
        if option.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=option.default)
        elif is_json(option.type):
            usual = msgspec.json.encode({} if option.default is msgspec.NODEFAULT else option.default).decode()
            parser.add_argument(flag, type=partial(msgspec.json.decode, type=option.type), default=usual)
        else:
            required = option.default is msgspec.NODEFAULT
            default = None if required else option.default
            parser.add_argument(flag, type=option.type, required=required, default=default)
    given = vars(parser.parse_args(argv))
    address, listen, prepared = given.pop("socket"), given.pop("listen"), given.pop("standby")
    variable, address, secret = given.pop("secret_env"), address or listen, None
    if isinstance(address, TcpAddress):
        try:
            secret = read_secret(variable)
        except ValueError as error:
            parser.error(str(error))
    return address, secret, EngineOptions(**given), prepared


def _run(options: EngineOptions, inbox: Inbox, server: SocketServer, loaded: Loaded | None) -> int:
    if loaded is None:
        server.announce(Loading(0.0, "importing torch"))
    import_engine()  # takes seconds; workers can connect already
    from transformers.utils.logging import disable_progress_bar

    from backends.native.engine.errors import LoadError
    from backends.native.engine.serving.management import ManagedEngine

    disable_progress_bar()
    try:
        engine = ManagedEngine(options, server.announce, loaded)
    except LoadError as error:
        structlog.get_logger().error("engine.failed", why=str(error))
        server.announce(Failed(str(error)))
        return 1
    except Exception as error:  # the engine's top: workers must be sent the failure before the process ends
        server.announce(Failed(f"the model could not be loaded: {type(error).__name__}"))
        raise
    stopping = Event()
    # Only now: until here a signal ends the process at once, since one that is loading has no step to finish.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop(inbox, stopping))
    # After loading, so that the buffers of loading have been returned to the system.
    keep_freed_memory()
    server.announce(engine.ready)
    serve(engine, inbox, server.send, stopping)
    return 0


def _prepare(options: EngineOptions, *, load: bool) -> Loaded | None:
    """Do what is possible beside an engine that runs: the imports, and on request the engine, if it is for a CPU."""
    import_engine()
    # The first engine is called at once: it listens before it loads, so that its progress is seen.
    if not load or select.select([sys.stdin], [], [], 0)[0]:
        return None
    from backends.native.engine.errors import LoadError
    from backends.native.engine.factory import load_engine
    from backends.native.engine.loading.weights import pick_device

    try:
        # A device has no memory for two: its cache takes all that the weights leave.
        return load_engine(options, lambda _: None) if pick_device(options.device).type == "cpu" else None
    except LoadError as error:  # it may be temporary, as a lack of memory is; once called, it is tried again
        structlog.get_logger().warning("engine.not_prepared", why=str(error))
        return None


def import_engine() -> None:
    """Import what an engine needs, which takes seconds."""
    # Before the import of transformers: huggingface_hub reads the variable once, when it is imported.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    gc.disable()  # imported objects are never garbage: collecting during the imports takes an eighth of the start
    import_module("backends.native.engine.factory")
    # Moves all that was imported to a permanent generation: later collections, also those within steps, do not visit
    # it.
    gc.freeze()
    gc.enable()


def configure_log() -> None:
    """Log like the workers: lines for people on a terminal, JSON otherwise."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *((*escaping(), renderer()) if sys.stderr.isatty() else (structlog.processors.JSONRenderer(),)),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


if __name__ == "__main__":
    sys.exit(main())
