"""What is written to sockets in one turn of the event loop, and reads that are written as they came.

`compiled` does what `plain` does, which is there for installations without a C compiler: a chunk of a stream costs more
in Python's frames than in all else that this process does for it.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

try:
    from backends.transport.outbox.compiled import Outbox, Outboxes, Relay
except ImportError:
    from backends.transport.outbox.plain import Outbox, Outboxes, Relay

from backends.transport.outbox.plain import MOST_TIMES

__all__ = ["MOST_TIMES", "Outbox", "Outboxes", "Relay", "outboxes_of"]

_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, Outboxes] = WeakKeyDictionary()


def outboxes_of(loop: asyncio.AbstractEventLoop) -> Outboxes:
    """The outboxes of an event loop."""
    if (found := _OF_LOOPS.get(loop)) is None:
        found = _OF_LOOPS[loop] = Outboxes(loop)
    return found
