"""Streamed chats. The first chunk of a choice has the role, the last one the finish reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from adapters.calls import written_signature
from adapters.fold import NO_ARGUMENTS
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.answers import chat_finish, prompt_ids
from adapters.openai.inbound.logprobs import chat_logprobs
from adapters.openai.inbound.stream import ErrorEncoder, StreamWriter, encode
from schemas.ir import Delta, Finished, Generate, ToolDelta
from schemas.openai.answers import ChatLogprobs, ChunkChoice, FunctionDelta, MessageDelta, ToolCallDelta


class ChatStreamWriter(StreamWriter):
    """Writer of one streamed chat."""

    object = "chat.completion.chunk"

    def __init__(self, dialect: Dialect, request: Generate, created: int, encode_error: ErrorEncoder) -> None:
        prefix = dialect.answers.stream_id_prefix
        # None and "" differ: MindIE's streams have ids without a prefix.
        prefix = dialect.answers.id_prefix if prefix is None else prefix
        super().__init__(dialect, request, created, encode_error, id=f"{prefix}{request.id}")
        self._role = "assistant" if dialect.answers.role_in_every_delta else UNSET
        # Whether a text is one chunk, whatever its tokens are.
        self._is_one_chunk = self._role is UNSET and not request.logprobs
        self._has_ids = False  # whether there was a chunk with ids
        self._opened: set[int] = set()  # choices that have a first chunk
        self._null_content: set[int] = set()  # choices whose content is null so far
        self._silent_calls: dict[tuple[int, int], bool] = {}  # (choice, call) -> whether it has no arguments so far

    def _text_choice(self, index: int) -> bytes:
        return self._choice(index, MessageDelta(role=self._role, content=""))

    def _delta(self, delta: Delta) -> bytes:
        is_text_only = bool(delta.text) and not (delta.tool_calls or delta.reasoning or delta.refusal)
        # The hot path: a text of a choice that is open and whose surrounding bytes are cached. `type`, not
        # `isinstance`: `Finished` is a `Delta`, too.
        is_open = type(delta) is Delta and delta.choice in self._around_text
        if is_text_only and is_open and (self._is_one_chunk or not delta.tokens) and not delta.ids:
            return self._text(delta.choice, delta.text)
        if self._role is not UNSET and is_text_only and len(delta.tokens) > 1:
            return b"".join(map(self._piece, _one_token_each(delta)))
        return self._piece(delta, is_text_only=is_text_only)

    def _piece(self, delta: Delta, *, is_text_only: bool = True) -> bytes:
        has_logprobs = self._request.logprobs and delta.tokens
        is_plain = is_text_only and not has_logprobs and not delta.ids
        if type(delta) is Delta and is_plain and delta.choice in self._around_text:
            return self._text(delta.choice, delta.text)
        if delta.tool_calls or self._silent_calls:
            delta = self._with_arguments(delta)
        out = b"".join(self._chunks(delta))
        if delta.ids:
            out += self._ids_chunk(delta)
        if isinstance(delta, Finished):
            # Databricks ends a text with `{"content": ""}`, and a choice whose content was null with `{}`.
            has_content = self._dialect.answers.last_delta_content and delta.choice not in self._null_content
            last = MessageDelta(content="") if has_content else MessageDelta()
            out += self._finish(
                self._choice(delta.choice, last, finish=chat_finish(self._dialect, self._request, delta.reason))
            )
        return out

    def _ids_chunk(self, delta: Delta) -> bytes:
        """vLLM's `token_ids`, in a chunk of their own; the first one has the prompt's."""
        logprobs = None if self._dialect.answers.logprobs else UNSET
        tail = self._usage_so_far() if self._every_chunk else self._tail
        prompt = prompt_ids(self._request, 0, self._started.prompts)
        if not self._has_ids and prompt is not UNSET:
            # Beside the choices, whose list the tail closes.
            tail = b'],"prompt_token_ids":' + encode(prompt) + tail[1:]
        self._has_ids = True
        return self._head + encode(ChunkChoice(delta.choice, MessageDelta(), logprobs, None, delta.ids)) + tail

    def _with_arguments(self, delta: Delta) -> Delta:
        """The delta with `NO_ARGUMENTS` for calls that end without any."""
        for call in delta.tool_calls:
            key = (delta.choice, call.index)
            self._silent_calls[key] = self._silent_calls.get(key, True) and not call.arguments
        if not isinstance(delta, Finished):
            return delta
        silent = [call for (choice, call), empty in self._silent_calls.items() if empty and choice == delta.choice]
        pieces = tuple(ToolDelta(call, arguments=NO_ARGUMENTS) for call in silent)
        return msgspec.structs.replace(delta, tool_calls=delta.tool_calls + pieces)

    def _chunks(self, delta: Delta) -> Iterator[bytes]:
        """One chunk for each kind of content in the delta, and one for each tool call."""
        index, calls = delta.choice, delta.tool_calls
        # Tokens without visible text (a part of a character) have log-probabilities, so their chunk cannot be left out.
        logprobs = chat_logprobs(delta.tokens, self._request.top_logprobs) if self._request.logprobs else None
        has_text = bool(delta.text or logprobs)
        if has_text:
            self._null_content.discard(index)
        first = self._first(delta, has_text)
        if first is not None:
            if first.content is None:
                self._null_content.add(index)
            yield self._chunk(self._choice(index, first))
            # OpenAI puts the role and the first tool call into one chunk.
            calls = calls[1:] if first.tool_calls or first.function_call else calls
        if delta.reasoning:
            yield self._chunk(self._choice(index, MessageDelta(role=self._role, reasoning_content=delta.reasoning)))
        if logprobs is not None:
            yield self._chunk(self._choice(index, MessageDelta(role=self._role, content=delta.text), logprobs))
        elif delta.text:
            yield self._text(index, delta.text)
        if delta.refusal:
            yield self._chunk(self._choice(index, MessageDelta(role=self._role, refusal=delta.refusal)))
        for call in calls:
            if piece := self._call(call):
                yield self._chunk(self._choice(index, MessageDelta(role=self._role, **piece)))

    def _first(self, delta: Delta, has_text: bool) -> MessageDelta | None:
        """The delta that opens a choice, as OpenAI begins a message: empty text, null text, a tool call, or an empty
        refusal. None if the choice is open, or `delta` is empty. Where every delta has the role, text needs none.
        """
        if delta.choice in self._opened:
            return None
        if not (has_text or delta.reasoning or delta.tool_calls or delta.refusal or isinstance(delta, Finished)):
            return None
        # An empty `Finished` opens the choice, too: every choice has a chunk with the role.
        self._opened.add(delta.choice)
        answers = self._dialect.answers
        no_refusal = None if answers.refusal else UNSET
        if has_text:
            if answers.role_in_every_delta:
                return None
            return MessageDelta(role="assistant", content="", refusal=no_refusal)
        if delta.reasoning:
            return MessageDelta(role="assistant", content=None, refusal=no_refusal)
        if delta.tool_calls:
            call = self._call(delta.tool_calls[0])
            return MessageDelta(role="assistant", content=None, **call, refusal=no_refusal)
        if delta.refusal:
            return MessageDelta(role="assistant", content=None, refusal="")
        return MessageDelta(role="assistant", content="", refusal=no_refusal)

    def _call(self, call: ToolDelta) -> dict[str, Any]:
        """The fields of a delta for a piece of a call. The deprecated form has room for the first call only."""
        if not self._request.legacy_functions:
            return {"tool_calls": (_tool_call(call),)}
        return {} if call.index else {"function_call": _function(call)}

    def _choice(
        self, index: int, delta: MessageDelta, logprobs: ChatLogprobs | None = None, finish: str | None = None
    ) -> bytes:
        return encode(ChunkChoice(index, delta, logprobs if self._dialect.answers.logprobs else UNSET, finish))


def _one_token_each(delta: Delta) -> Iterator[Delta]:
    """The delta as deltas of at most one visible token; the last one has all that is no text."""
    *firsts, last = [token for token in delta.tokens if token.text and not token.special] or delta.tokens[-1:]
    for token in firsts:
        yield Delta(delta.choice, token.text, (token,))
    yield msgspec.structs.replace(delta, text="" if last.special else last.text, tokens=(last,))


def _tool_call(call: ToolDelta) -> ToolCallDelta:
    return ToolCallDelta(
        index=call.index,
        id=UNSET if call.id is None else call.id,
        # Clients join the pieces of a call field by field: id and name come once, with the first piece, because a
        # repeated string would be appended.
        type=UNSET if call.id is None else "function",
        function=_function(call),
        extra_content=written_signature(call.signature),
    )


def _function(call: ToolDelta) -> FunctionDelta:
    return FunctionDelta(UNSET if call.name is None else call.name, call.arguments)
