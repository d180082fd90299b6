"""Streamed chats. The first chunk of a choice tells the role, the last one the finish reason."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UNSET, UnsetType

from adapters.openai.logprobs import chat_logprobs
from adapters.openai.stream import StreamWriter
from schemas.ir import Delta, Finished, ToolDelta
from schemas.openai import ChatLogprobs, ChunkChoice, FunctionDelta, MessageDelta, ToolCallDelta

_json = msgspec.json.Encoder().encode


class ChatStreamWriter(StreamWriter):
    """One streamed chat being written."""

    object = "chat.completion.chunk"

    def _id(self) -> str:
        prefix = self._dialect.stream_id_prefix
        return f"{self._dialect.id_prefix if prefix is None else prefix}{self._request.id}"

    def _text_choice(self, index: int) -> bytes:
        return self._choice(index, self._said(content=""))

    def _delta(self, delta: Delta) -> bytes:
        if type(delta) is Delta and delta.choice in self._texts and self._is_text(delta):
            return self._text(delta.choice, delta.text)
        out = b"".join(self._pieces(delta))
        if isinstance(delta, Finished):
            last = MessageDelta(content="") if self._dialect.last_delta_content else MessageDelta()
            out += self._finish(self._choice(delta.choice, last, finish=self._dialect.finish[delta.reason]))
        return out

    def _is_text(self, delta: Delta) -> bool:
        if delta.tool_calls or delta.reasoning or delta.refusal or not delta.text:
            return False
        return not (self._request.logprobs and delta.tokens)

    def _pieces(self, delta: Delta) -> Iterator[bytes]:
        """One chunk for every kind of thing that the delta says."""
        index = delta.choice
        if index not in self._opened and not self._dialect.role_in_every_delta:
            yield from self._open(delta)
        if delta.reasoning:
            yield self._chunk(self._choice(index, self._said(reasoning_content=delta.reasoning)))
        logprobs = chat_logprobs(delta.tokens, self._request.top_logprobs) if self._request.logprobs else None
        if logprobs is not None:
            yield self._chunk(self._choice(index, self._said(content=delta.text), logprobs))
        elif delta.text:
            yield self._text(index, delta.text)
        if delta.refusal:
            yield self._chunk(self._choice(index, self._said(refusal=delta.refusal)))
        for call in delta.tool_calls:
            yield self._chunk(self._choice(index, self._said(tool_calls=(_tool_call(call),))))
