"""What is deployed now: the configuration, and the changes made while serving, in a JSON file that all workers share.

Before each request every worker looks whether the file has changed: a change that one worker has confirmed is in force
on all. With a state server the file is this gateway's copy (`gateway.storage.shared.document`). Decision 15 says why
it is not SQLite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog
from msgspec.structs import replace

from backends.base import Health
from gateway.config import Config, ConfigError
from gateway.deployment.deployments import Deployment, Deployments, State, changed, deployed, ramped, restarted, settled
from gateway.deployment.ramp import Move, RampState
from gateway.storage.json_file import JsonFile
from gateway.storage.shared.document import Document, FileDocument
from schemas.catalog import Change
from schemas.errors import BackendUnavailable, Forbidden, ModelNotFound

log = structlog.get_logger()


class LiveDeployments:
    """What is deployed now, as far as this worker knows.

    Args:
        config: the configuration; an endpoint of it is served as configured until it is changed.
        document: the changes made while serving; None: those in the configuration's state file.

    Raises:
        ConfigError: the state file cannot be read, or contradicts the configuration.
    """

    def __init__(self, config: Config, document: Document[State] | None = None) -> None:
        self._config = config
        self._file = document if document is not None else state_file(config)
        # The stamp is taken before the file is read: a change in between is read once more, never missed.
        self._stamp = self._file.stamp() if self._file is not None else 0
        state = self._file.read() if self._file is not None else State()
        self.deployments, self.resets = self._deployed(state), state.resets

    def backend_of(self) -> dict[tuple[str, ...], str]:
        """The backend of each arm, by endpoint and arm."""
        return {
            (name, arm.name): arm.backend
            for name, deployed in self.deployments.items()
            for arm in deployed.serving.served_entities
        }

    def refresh(self) -> bool:
        """Read the state file if it has changed; return whether that changed what is deployed.

        An invalid state is logged and ignored: the last valid one stays in force.
        """
        if self._file is None or (stamp := self._file.stamp()) == self._stamp:
            return False
        # Also for a state that is refused below: it is reported once, not at every request.
        self._stamp = stamp
        try:
            state = self._file.read()
            self.deployments, self.resets = self._deployed(state), state.resets
        except ConfigError as error:
            log.error("state.rejected", error=str(error))
            return False
        return True

    async def change(self, change: Change, health: Mapping[str, Health], generates: Mapping[str, bool]) -> None:
        """Make a change for all workers.

        Args:
            change: the requested change.
            health: of all backends, by name.
            generates: of `deployments.generating`.

        Raises:
            schemas.errors.RequestError: the change is invalid, or there is no state file.
            schemas.errors.BackendUnavailable: the state file cannot be read or written; the text says why.
        """

        # Called under the lock, with the state that the file has then: another worker may have changed it since this
        # one read it.
        def make(found: Deployments) -> Deployment | None:
            return changed(found, change, health, time.time_ns(), generates)

        with _reported():
            await self._change(change.endpoint, make)

    async def settle(self, health: Mapping[str, Health]) -> None:
        """Finish the updates whose backends have become ready or have failed.

        If the file cannot be read or written, that is logged, and the next call tries again.
        """

        def make(found: Deployments, name: str) -> Deployment | None:
            return settled(found[name], health, time.time_ns()) if name in found else None

        # The mapping of this moment: `refresh` may put another in its place during an `await`, but never alters one.
        for name, waiting in self.deployments.items():
            # A cheap check without the lock: this runs every second in every worker. `now` does not matter for it.
            if waiting.pending is None or settled(waiting, health, 0) == waiting:
                continue
            try:
                await self._change(name, partial(make, name=name))
            except (ConfigError, OSError) as error:
                log.error("state.rejected", error=str(error))

    async def ramp(self, name: str, seen: RampState | None, move: Move, reason: str) -> bool:
        """Move an endpoint's ramp for all workers; return whether this worker has moved it.

        Every worker may decide on a move: the first one makes it, and the others find that the state is another.
        If the file cannot be read or written, that is logged, and the next call tries again.
        """
        made = False

        def make(found: Deployments) -> Deployment | None:
            nonlocal made
            if (before := found.get(name)) is None:  # deleted meanwhile
                return None
            after = ramped(before, seen, move, reason, time.time_ns())
            made = after != before
            return after

        try:
            await self._change(name, make)
        except (ConfigError, OSError) as error:
            log.error("state.rejected", error=str(error))
            return False
        return made

    async def _change(self, name: str, make: Callable[[Deployments], Deployment | None]) -> None:
        if self._file is None:
            raise Forbidden("Endpoints cannot be changed here: the server has no state file.")

        def edit(state: State) -> State:
            new = make(self._deployed(state))
            if new is not None and new.failed:
                log.warning("update.failed", model=name, reason=new.failed)
            rest = {other: kept for other, kept in state.endpoints.items() if other != name}
            unknown = new is None and name not in self._config.endpoints  # nothing is left to override
            # The deletion of an endpoint of the configuration file is stored as null, or the endpoint would come back.
            return replace(state, endpoints=rest if unknown else rest | {name: new})

        await self._file.change(edit)

    async def reset(self, name: str) -> None:
        """Have an endpoint's experiment begin anew on all workers.

        Raises:
            schemas.errors.Forbidden: there is no state file.
            schemas.errors.BackendUnavailable: the state cannot be read or written; the text says why.
        """
        if self._file is None:
            raise Forbidden("Figures cannot be reset here: the server has no state file. A restart resets them.")

        def edit(state: State) -> State:
            return replace(state, resets=state.resets | {name: time.time_ns()})

        await self._write(edit)

    async def restart_ramp(self, name: str) -> None:
        """Have an endpoint's ramp and experiment begin anew on all workers, in one change.

        Raises:
            schemas.errors.RequestError: there is no such endpoint, it has no ramp, an update of it is pending, or there
                is no state file.
        """
        if self._file is None:
            raise Forbidden("Ramps cannot be restarted here: the server has no state file.")

        def edit(state: State) -> State:
            if (found := self._deployed(state).get(name)) is None:
                raise ModelNotFound(f"Endpoint with name '{name}' does not exist.")
            now = time.time_ns()
            new = restarted(name, found, now)
            return replace(state, endpoints=state.endpoints | {name: new}, resets=state.resets | {name: now})

        await self._write(edit)

    async def _write(self, edit: Callable[[State], State]) -> None:
        assert self._file is not None
        with _reported():
            await self._file.change(edit)

    def _deployed(self, state: State) -> Deployments:
        return deployed(self._config.endpoints, state, self._config.backends, self._config.filters)


@contextmanager
def _reported() -> Iterator[None]:
    """Log a state that cannot be read or written, and report it to the client.

    Raises:
        schemas.errors.BackendUnavailable: in place of such an error.
    """
    try:
        yield
    except (ConfigError, OSError) as error:
        log.error("state.rejected", error=str(error))
        raise BackendUnavailable(f"The state of the endpoints cannot be changed: {error}") from None


def state_file(config: Config) -> FileDocument[State] | None:
    """The state file of a configuration; None if it names none.

    Raises:
        ConfigError: its folder cannot be written to.
    """
    if config.server.state_file is None:
        return None
    file = JsonFile(Path(config.server.state_file), State())
    file.check("server.state_file")
    return FileDocument(file)
