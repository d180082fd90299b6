"""What a block's deltas have around their texts, learned from one of them (`adapters.formats.text_runs`)."""

from __future__ import annotations

import msgspec

from adapters.formats.text_runs import PROBE, TextRuns, around
from schemas.anthropic import RemoteEvent

_decode = msgspec.json.Decoder(RemoteEvent).decode


def learn(data: bytes, event: RemoteEvent) -> TextRuns | None:
    """What runs of events like this one have around their texts; None if it adds anything but text.

    Args:
        data: a `content_block_delta` as it was received.
        event: the same, decoded.
    """
    delta, parts = event.delta, around(data, b'"text":"')
    if delta is None or parts is None or b"\n" in data:
        return None
    # What else the delta may have, the reader would look for in one without text.
    if not isinstance(delta.text, str) or (delta.thinking, delta.partial_json) != (None, None):
        return None
    # The name may belong to another object: the text between these bytes must be what decoding finds as the delta's.
    probe = msgspec.structs.replace(event, delta=msgspec.structs.replace(delta, text=PROBE))
    if _decode(parts[0] + PROBE.encode() + parts[1]) != probe:
        return None
    around_text = b"event: content_block_delta\ndata: " + parts[0], parts[1] + b"\n\n"
    return TextRuns(around_text, around_text, 0)
