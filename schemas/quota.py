"""What is left of a client's limit, for the headers of answers."""

from __future__ import annotations

from typing import Literal

import msgspec


class Quota(msgspec.Struct, frozen=True):
    """A limit in a window, after the request that is answered has been counted.

    Attributes:
        kind: what is limited.
        limit: the most in the window.
        remaining: what is left of it.
        reset: seconds until all of it is left again, rounded up.
    """

    kind: Literal["requests", "tokens"]
    limit: int
    remaining: int
    reset: int
