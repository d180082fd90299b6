"""How `gateway reload` and `gateway restart` reach a running supervisor: a Unix socket in its folder.

Only the user of the supervisor can enter that folder, so whoever connects may ask. A supervisor that has ended accepts
no connection: unlike a process id in a file, the socket cannot mean another process.

Each side sends lines of JSON: the supervisor an `Introduction`, the command an action, the supervisor, once it knows,
an `Outcome`.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec
import structlog

from gateway.process.folder import folders

log = structlog.get_logger()

_NAME = "control"
_INTRODUCED_WITHIN = 10.0
"""Seconds that a supervisor has to say who it is: it may be reading its configuration, or be stopped."""

Action = Literal["reload", "restart"]


class Introduction(msgspec.Struct, frozen=True):
    """Which supervisor this is.

    Attributes:
        pid: its process id.
        addresses: where it listens, as `host:port`.
    """

    pid: int
    addresses: tuple[str, ...]


class Outcome(msgspec.Struct, frozen=True):
    """What became of an action.

    Attributes:
        done: whether it was done; if not, the supervisor goes on as before.
        text: what has changed, or why it was not done.
    """

    done: bool
    text: str


class ControlSocket:
    """The supervisor's side. Its owner asks for `requests` often, or when a descriptor is readable.

    Args:
        folder: the supervisor's.
        listeners: the sockets that it listens on.
    """

    def __init__(self, folder: Path, listeners: Sequence[socket.socket]) -> None:
        self._introduction = Introduction(os.getpid(), tuple(map(_address, listeners)))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        try:
            self._listener.bind(str(folder / _NAME))
        except OSError as error:  # unix(7): the path may have 107 bytes; signals still reach the supervisor
            log.warning("control.not_opened", error=str(error))
            self._listener.close()
        else:
            self._listener.listen()
        self._accepts = True  # whether somebody who connects can be accepted
        self._undecided: list[socket.socket] = []
        self._waiting: list[tuple[Action, socket.socket]] = []

    @property
    def descriptors(self) -> list[int]:
        """Those that are readable when `requests` finds something."""
        sources = [self._listener, *self._undecided] if self._accepts else self._undecided
        return [each.fileno() for each in sources if each.fileno() >= 0]

    def requests(self) -> set[Action]:
        """The actions that were asked for since the last call."""
        self._accept()
        undecided, self._undecided = self._undecided, []
        found: set[Action] = set()
        for client in undecided:
            try:
                line = client.recv(64)
            except BlockingIOError:
                self._undecided.append(client)
                continue
            except OSError:
                line = b""
            for action in get_args(Action):
                if line == msgspec.json.encode(action) + b"\n":
                    found.add(action)
                    self._waiting.append((action, client))
                    break
            else:  # it only wanted to know who this is
                client.close()
        return found

    def _accept(self) -> None:
        while self._listener.fileno() >= 0:
            try:
                client = self._listener.accept()[0]
            except OSError as error:  # nobody is there, or no descriptor is left: then it would stay readable
                self._accepts = isinstance(error, BlockingIOError)
                return
            client.setblocking(False)
            _send(client, self._introduction)
            self._undecided.append(client)

    def answer(self, action: Action, *, done: bool, text: str = "") -> None:
        """Tell all who asked for this action what became of it."""
        for client in [client for asked, client in self._waiting if asked == action]:
            _send(client, Outcome(done, text))
            client.close()
        self._waiting = [each for each in self._waiting if each[0] != action]

    def close(self) -> None:
        """Accept nobody any more; whoever still waits is not answered. Idempotent."""
        self._listener.close()
        for client in (*self._undecided, *(client for _, client in self._waiting)):
            client.close()
        self._undecided, self._waiting = [], []


@dataclass(slots=True, eq=False)
class RunningServer:
    """The command's side: a supervisor that has introduced itself."""

    introduction: Introduction
    connection: socket.socket

    def ask(self, action: Action) -> Outcome | None:
        """Have it act, and wait until that is done, however long models take to load; None if it ended meanwhile."""
        try:
            self.connection.settimeout(None)
            _send(self.connection, action)
            return msgspec.json.decode(_line(self.connection), type=Outcome)
        except (OSError, msgspec.DecodeError):
            return None


@dataclass(frozen=True, slots=True)
class RunningServers:
    """The supervisors on this machine.

    Attributes:
        found: those of this user.
        silent: folders of those of this user that are there, and do not answer.
        of_others: the names of other users who have some.
    """

    found: tuple[RunningServer, ...]
    silent: tuple[Path, ...]
    of_others: tuple[str, ...]

    def close(self) -> None:
        """Close the connections to them."""
        for server in self.found:
            server.connection.close()


def running_servers() -> RunningServers:
    """Find the supervisors whose temporary folder is where this process has its own."""
    found: list[RunningServer] = []
    silent: list[Path] = []
    of_others: set[str] = set()
    for folder in folders():
        with suppress(OSError, msgspec.DecodeError):  # it has ended, or ends at this moment
            # A folder of somebody else may hold anything under this name.
            if (owner := folder.lstat().st_uid) != os.geteuid():
                of_others.add(_name_of(owner))
                continue
            try:
                found.append(_introduced(folder / _NAME))
            except TimeoutError:
                silent.append(folder)
    return RunningServers(tuple(found), tuple(silent), tuple(sorted(of_others)))


def _introduced(path: Path) -> RunningServer:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_INTRODUCED_WITHIN)
        connection.connect(str(path))
        return RunningServer(msgspec.json.decode(_line(connection), type=Introduction), connection)
    except BaseException:
        connection.close()
        raise


def _send(client: socket.socket, message: object) -> None:
    with suppress(OSError):  # it has left
        client.sendall(msgspec.json.encode(message) + b"\n")


def _line(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as lines:
        return lines.readline()


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
