"""Streamed chats. The first chunk of a choice tells the role, the last one the finish reason."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from adapters.openai.dialects import Dialect
from adapters.openai.inbound.logprobs import chat_logprobs
from adapters.openai.inbound.stream import Frame, StreamWriter, encode
from schemas.ir import Delta, Finished, Generate, ToolDelta
from schemas.openai.answers import ChatLogprobs, ChunkChoice, FunctionDelta, MessageDelta, ToolCallDelta


class ChatStreamWriter(StreamWriter):
    """One streamed chat being written."""

    object = "chat.completion.chunk"

    def __init__(self, dialect: Dialect, request: Generate, created: int, failure: Frame) -> None:
        super().__init__(dialect, request, created, failure)
        self._role = "assistant" if dialect.answers.role_in_every_delta else UNSET
        self._opened: set[int] = set()
        self._silent: set[int] = set()  # choices whose content is null so far

    def _id(self) -> str:
        prefix = self._dialect.answers.stream_id_prefix
        return f"{self._dialect.answers.id_prefix if prefix is None else prefix}{self._request.id}"

    def _text_choice(self, index: int) -> bytes:
        return self._choice(index, MessageDelta(role=self._role, content=""))

    def _delta(self, delta: Delta) -> bytes:
        if type(delta) is Delta and delta.choice in self._texts and self._is_text(delta):
            return self._text(delta.choice, delta.text)
        out = b"".join(self._pieces(delta))
        if isinstance(delta, Finished):
            told = self._dialect.answers.last_delta_content and delta.choice not in self._silent
            last = MessageDelta(content="") if told else MessageDelta()
            out += self._finish(self._choice(delta.choice, last, finish=self._dialect.wording.finish[delta.reason]))
        return out

    def _is_text(self, delta: Delta) -> bool:
        if not delta.text or delta.tool_calls or delta.reasoning or delta.refusal:
            return False
        return not (self._request.logprobs and delta.tokens)

    def _pieces(self, delta: Delta) -> Iterator[bytes]:
        """One chunk for every kind of thing that the delta says."""
        index, calls = delta.choice, delta.tool_calls
        logprobs = chat_logprobs(delta.tokens, self._request.top_logprobs) if self._request.logprobs else None
        speaks = bool(delta.text or logprobs)
        if speaks:
            self._silent.discard(index)
        if self._opens(delta, speaks):
            first = self._first(delta, speaks)
            if first.content is None:
                self._silent.add(index)
            yield self._chunk(self._choice(index, first))
            calls = calls[1:] if first.tool_calls else calls
        if delta.reasoning:
            yield self._chunk(self._choice(index, MessageDelta(role=self._role, reasoning_content=delta.reasoning)))
        if logprobs is not None:
            yield self._chunk(self._choice(index, MessageDelta(role=self._role, content=delta.text), logprobs))
        elif delta.text:
            yield self._text(index, delta.text)
        if delta.refusal:
            yield self._chunk(self._choice(index, MessageDelta(role=self._role, refusal=delta.refusal)))
        for call in calls:
            yield self._chunk(self._choice(index, MessageDelta(role=self._role, tool_calls=(_tool_call(call),))))

    def _opens(self, delta: Delta, speaks: bool) -> bool:
        """Whether the choice's first chunk is due. Where every delta tells the role, text needs no other."""
        if delta.choice in self._opened:
            return False
        if not (speaks or delta.reasoning or delta.tool_calls or delta.refusal or isinstance(delta, Finished)):
            return False
        self._opened.add(delta.choice)
        return not (speaks and self._dialect.answers.role_in_every_delta)

    def _first(self, delta: Delta, speaks: bool) -> MessageDelta:
        """As the service begins a message: with no text yet, with a call, or with no refusal yet."""
        nothing = None if self._dialect.answers.refusal else UNSET
        if speaks:
            return MessageDelta(role="assistant", content="", refusal=nothing)
        if delta.reasoning:
            return MessageDelta(role="assistant", content=None, refusal=nothing)
        if delta.tool_calls:
            calls = (_tool_call(delta.tool_calls[0]),)
            return MessageDelta(role="assistant", content=None, tool_calls=calls, refusal=nothing)
        if delta.refusal:
            return MessageDelta(role="assistant", content=None, refusal="")
        return MessageDelta(role="assistant", content="", refusal=nothing)

    def _choice(
        self, index: int, delta: MessageDelta, logprobs: ChatLogprobs | None = None, finish: str | None = None
    ) -> bytes:
        return encode(ChunkChoice(index, delta, logprobs if self._dialect.answers.logprobs else UNSET, finish))


def _tool_call(call: ToolDelta) -> ToolCallDelta:
    return ToolCallDelta(
        index=call.index,
        id=UNSET if call.id is None else call.id,
        type=UNSET if call.id is None else "function",
        function=FunctionDelta(UNSET if call.name is None else call.name, call.arguments),
    )
