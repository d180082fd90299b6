"""The interface of what operators can do to a native model while it is served."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class ModelControls(Protocol):
    """What operators can do to a native model while it is served, for all workers that share its engine."""

    @property
    def asleep(self) -> int:
        """The level of its sleep; 0: it is awake."""
        ...

    async def sleep(self, level: int) -> None:
        """Free memory once the requests in flight have ended: level 1 caches, level 2 the weights, too.

        Raises:
            schemas.errors.GatewayError: it does not sleep.
        """
        ...

    async def wake(self) -> None:
        """Make it ready again; returns once it is.

        Raises:
            schemas.errors.GatewayError: it cannot be woken.
        """
        ...

    async def load_lora(self, name: str, folder: str) -> None:
        """Load a LoRA adapter, in place of one of this name.

        Raises:
            schemas.errors.GatewayError: it is none of the folders that are allowed, or does not fit the model.
        """
        ...

    async def unload_lora(self, name: str) -> None:
        """Unload a LoRA adapter. Requests in flight keep it.

        Raises:
            schemas.errors.GatewayError: there is none of this name.
        """
        ...


@runtime_checkable
class HasControls(Protocol):
    """A backend with a native engine, which operators can manage."""

    @property
    def controls(self) -> ModelControls:
        """What they can do."""
        ...
