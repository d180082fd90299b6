"""What operators can do to a native model while it is served: sleep and wake, load and unload LoRA adapters.

The engine does it for all workers and announces the result by another `Ready`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from backends.native.client.engine_client import EngineClient
from backends.native.options import NativeOptions
from backends.native.protocol.engine_options import LoraName
from backends.native.protocol.messages import Manage, Ready
from schemas.errors import BackendUnavailable, Conflict, InvalidRequest, UnsupportedFeature

_ASLEEP_RETRY = 5.0
"""Seconds after which a client may ask a sleeping model again, which somebody has to wake."""
_POLL_INTERVAL = 0.02


class Controls:
    """Implements `backends.controls.ModelControls`.

    Args:
        client: of the engine.
        options: the backend's.
    """

    def __init__(self, client: EngineClient, options: NativeOptions) -> None:
        self._client = client
        self._options = options

    @property
    def asleep(self) -> int:
        """The level of the model's sleep; 0: it is awake."""
        ready = self._client.ready
        return 0 if ready is None else ready.asleep

    def rouse(self) -> None:
        """Called before each request: wake a sleeping model, or refuse.

        A request that is submitted next waits in the engine, or for its `Ready` (`reconnect_timeout`).

        Raises:
            schemas.errors.BackendUnavailable: it is asleep, and requests do not wake it.
        """
        if not self.asleep:
            return
        if self._options.wake != "on_request":
            raise BackendUnavailable("The model is asleep.", retry_after=_ASLEEP_RETRY)
        self._client.order(Manage(-1, "wake"))

    async def sleep(self, level: int) -> None:
        """Free memory once the requests in flight have ended; returns then."""
        await self._manage(Manage(0, "sleep", level))
        await self._until(lambda ready: ready.asleep >= level, "its requests have not ended")

    async def wake(self) -> None:
        """Make the model ready again; returns once it is."""
        await self._manage(Manage(0, "wake"))
        await self._until(lambda ready: not ready.asleep, "it is still loading")

    async def load_lora(self, name: str, folder: str) -> None:
        """Load the LoRA adapter in `folder`, which must be in the folder that the options allow."""
        try:
            msgspec.convert(name, LoraName)
        except msgspec.ValidationError:
            raise InvalidRequest(f"'{name}' is no name for a LoRA adapter.", param="lora_name") from None
        path = self._allowed(folder)
        await self._manage(Manage(0, "load_lora", name=name, path=str(path)))
        await self._until(lambda ready: name in ready.lora_adapters, "it is still loading")

    async def unload_lora(self, name: str) -> None:
        """Unload a LoRA adapter; requests in flight keep it."""
        if name not in self._ready().lora_adapters:
            raise InvalidRequest(f"There is no LoRA adapter '{name}'.", param="lora_name")
        await self._manage(Manage(0, "unload_lora", name=name))
        await self._until(lambda ready: name not in ready.lora_adapters, "it is still there")

    def _allowed(self, folder: str) -> Path:
        """The folder of a LoRA adapter that a client names: untrusted input."""
        root = self._options.lora_folder
        if not root:
            message = "This server takes no LoRA adapters while it runs: its backend has no `lora_folder`."
            raise UnsupportedFeature(message, feature="lora_adapters", param="lora_path")
        top = Path(root).resolve()
        try:
            path = (top / folder).resolve()  # an absolute path stays as it is
            inside = path != top and path.is_relative_to(top) and path.is_dir()
        except (OSError, ValueError):  # too long, a NUL byte
            inside = False
        # One message for all: whether another path exists is not the client's to know.
        if not inside:
            raise InvalidRequest("There is no such folder in the server's `lora_folder`.", param="lora_path")
        return path

    def _ready(self) -> Ready:
        if self._client.ready is None:
            raise BackendUnavailable("The engine is not ready.", retry_after=1.0)
        return self._client.ready

    async def _manage(self, asked: Manage) -> None:
        self._ready()
        why = await self._client.manage(asked)
        if why is not None:
            raise Conflict(why)

    async def _until(self, done: Callable[[Ready], bool], otherwise: str) -> None:
        """Wait for a description of the engine of which `done` holds."""
        left = self._options.reconnect_timeout
        # Polled: this happens a few times in a process's life.
        while (ready := self._client.ready) is None or not done(ready):
            if left <= 0:
                raise BackendUnavailable(f"The change was begun, but {otherwise}.", retry_after=_ASLEEP_RETRY)
            await asyncio.sleep(_POLL_INTERVAL)
            left -= _POLL_INTERVAL
