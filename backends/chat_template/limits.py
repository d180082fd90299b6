"""What rendering one chat may take."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Limits on a child process that renders.

    Attributes:
        seconds: CPU time for one chat, and for setting the template up.
        memory: bytes of address space, beyond what the interpreter takes.
        output_bytes: of the rendered text.
    """

    seconds: float = 1.0
    memory: int = 256 << 20
    output_bytes: int = 4 << 20
