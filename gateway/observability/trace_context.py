"""W3C Trace Context: which trace a request belongs to, by its headers (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Version 00 ends after the flags; later versions may go on. All zeros are invalid ids, and so is version ff.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?")
_TRACESTATE = re.compile(r"[ -~]{1,512}")


def trace_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The client's `traceparent` and `tracestate`, as a server that takes no part in the trace passes them on.

    An invalid `traceparent` is ignored, and then `tracestate`, too (section 3.3 there).
    """
    parent = headers.get("traceparent")
    if parent is None or _TRACEPARENT.fullmatch(parent) is None:
        return ()
    state = headers.get("tracestate", "")
    return (
        (("traceparent", parent), ("tracestate", state)) if _TRACESTATE.fullmatch(state) else (("traceparent", parent),)
    )


def trace_id(headers: tuple[tuple[str, str], ...]) -> str | None:
    """The id of the trace in what `trace_headers` has found."""
    return headers[0][1].split("-")[1] if headers else None
