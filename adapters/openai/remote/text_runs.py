"""What a stream's chunks have around their texts, learned from one of them (`adapters.formats.text_runs`)."""

from __future__ import annotations

import msgspec

from adapters.formats.text_runs import PROBE, TextRuns, around
from schemas.openai.remote import RemoteAnswer, RemoteChoice, RemoteMessage

_CONTENT, _TEXT = b'"content":"', b'"text":"'
_decode = msgspec.json.Decoder(RemoteAnswer).decode


def learn(data: bytes, sent: bytes, chunk: RemoteAnswer) -> TextRuns | None:
    """What runs of chunks like this one have around their texts; None if it adds anything but text.

    Args:
        data: the chunk as it was received.
        sent: as it is relayed.
        chunk: the same, decoded.
    """
    if chunk.choices is None or len(chunk.choices) != 1 or chunk.usage is not None or b"\n" in data:
        return None
    choice = chunk.choices[0]
    # A completion has a text where a chat has a delta with content.
    name, text = (_CONTENT, choice.delta.content) if choice.delta is not None else (_TEXT, choice.text)
    parts, sent_parts = around(data, name), around(sent, name)
    if parts is None or sent_parts is None or choice != _with_text(choice, text):
        return None
    # The name may belong to another object: the text between these bytes must be what decoding finds as the delta's.
    probe = msgspec.structs.replace(chunk, choices=(_with_text(choice, PROBE),))
    if _decode(parts[0] + PROBE.encode() + parts[1]) != probe:
        return None
    return TextRuns(_event(*parts), _event(*sent_parts), choice.index)


def _event(before: bytes, after: bytes) -> tuple[bytes, bytes]:
    return b"data: " + before, after + b"\n\n"


def _with_text(choice: RemoteChoice, text: object) -> RemoteChoice:
    """A chunk's choice with this text and nothing else that is read of it."""
    content = text if isinstance(text, str) else ""
    is_chat = choice.delta is not None
    return RemoteChoice(
        choice.index,
        delta=RemoteMessage(content) if is_chat else None,
        text=None if is_chat else content,
        logprobs=choice.logprobs,
        stop_reason=choice.stop_reason,
    )
