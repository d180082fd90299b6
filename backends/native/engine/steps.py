"""What a serving loop drives, and what the engines behind it are: `loop.Engine`, `encoder_engine.EncoderEngine`."""

from __future__ import annotations

from typing import Protocol

from backends.native.engine.lora.table import LoraTable
from backends.native.protocol.messages import Cached, Managed, Pong, Step, ToEngine


class Steps(Protocol):
    """An engine, or what stands before one (`serving.management`). All calls come from one thread."""

    @property
    def busy(self) -> bool:
        """Whether `step` would run a sequence or return an output."""
        ...

    def handle(self, connection: int, message: ToEngine) -> Pong | Cached | Managed | None:
        """Handle one message of a worker; return its answer, if any. A `Ping` may arrive in the middle of a step."""
        ...

    def disconnect(self, connection: int) -> None:
        """Free every sequence of a connection that was lost."""
        ...

    def step(self) -> dict[int, Step]:
        """Run one step and return its outputs by connection."""
        ...


class Manageable(Steps, Protocol):
    """An engine that can give memory back, and whose LoRA adapters can change."""

    @property
    def loras(self) -> LoraTable | None:
        """The model's LoRA adapters; None: it takes none."""
        ...

    def lora_keys(self) -> set[str]:
        """The keys of the LoRA adapters that sequences use."""
        ...

    def sleep(self) -> None:
        """Free what can be made anew without the checkpoint. There must be no sequences."""
        ...

    def wake(self) -> None:
        """Undo `sleep`."""
        ...
