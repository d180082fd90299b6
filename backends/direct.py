"""Asking a server without a task: within one callback of the event loop, with another callback for the answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, runtime_checkable

from adapters.optional import RelayedWhole
from backends.observation import Observer
from schemas.ir import Generate

Take = Callable[[RelayedWhole | None], None]
"""Gets the answer, which is complete and counted; None: it is unusual, and a task is to go on."""


class DirectExchange(Protocol):
    """A connection that is lent to a request, to which nothing was sent yet. `send` or `put_back` must follow."""

    def send(self, observer: Observer, take: Take) -> None:
        """Send the request, and have `take` called once."""
        ...

    def put_back(self) -> None:
        """Send nothing."""
        ...

    def hand_over(self) -> Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]]:
        """Leave what was sent to a task, and call `take` no more.

        Returns:
            What the coroutine of that task, which asks the backend as ever, is to be wrapped in.
        """
        ...


@runtime_checkable
class AsksDirectly(Protocol):
    """A backend that can be asked without a task."""

    def exchange(self, request: Generate) -> DirectExchange | None:
        """An exchange for a plain request; None: it is to be asked in a task."""
        ...
