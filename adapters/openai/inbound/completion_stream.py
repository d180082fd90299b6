"""Streamed completions. Their chunks have the form of whole answers."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from adapters.openai.dialects import Dialect
from adapters.openai.inbound.answers import completion_finish, echoed, prompt_ids, prompt_tokens
from adapters.openai.inbound.logprobs import completion_logprobs
from adapters.openai.inbound.stream import ErrorEncoder, StreamWriter, encode
from schemas.ir import Delta, Finished, Generate
from schemas.openai.answers import CompletionChoice, CompletionLogprobs


class CompletionStreamWriter(StreamWriter):
    """Writer of one streamed completion."""

    object = "text_completion"

    def __init__(self, dialect: Dialect, request: Generate, created: int, encode_error: ErrorEncoder) -> None:
        id = f"{dialect.answers.completion_id_prefix}{request.id}"
        super().__init__(dialect, request, created, encode_error, id=id)
        self._with_ids: set[int] = set()  # choices that have a chunk with ids
        self._offsets: dict[int, int] = {}  # choice -> characters written so far

    def _text_choice(self, index: int) -> bytes:
        return self._choice(index, "")

    def _delta(self, delta: Delta) -> bytes:
        out = b"".join(self._chunks(delta))
        if delta.ids:
            out += self._chunk(self._ids(delta))
        if isinstance(delta, Finished):
            # Before the finish reason: nothing of a choice may follow it.
            if self._request.answer_suffix:
                out += self._text(delta.choice, self._request.answer_suffix)
            out += self._finish(self._choice(delta.choice, "", finish=completion_finish(self._dialect, delta.reason)))
        return out

    def _chunks(self, delta: Delta) -> Iterator[bytes]:
        """The chunks of a delta. Completions cannot express reasoning and tool calls; a refusal is text."""
        index, text = delta.choice, delta.text + delta.refusal
        # The echo is the first chunk of its choice; `_echo` sets the offset, so it is written once.
        if self._request.echo and index not in self._offsets:
            yield self._echo(index)
        # `_text` caches the bytes around the text, but not around log-probabilities, which differ in every chunk.
        if self._request.logprobs and delta.tokens:
            offset = self._offsets.get(index, 0)
            logprobs = completion_logprobs(delta.tokens, self._request.top_logprobs, offset)
            yield self._chunk(self._choice(index, text, logprobs))
        elif text:
            yield self._text(index, text)
        if self._request.logprobs:
            self._offsets[index] = self._offsets.get(index, 0) + len(text)

    def _ids(self, delta: Delta) -> bytes:
        """vLLM's `token_ids`, in a chunk of their own; with the prompt's in the first one of a choice."""
        first = delta.choice not in self._with_ids
        self._with_ids.add(delta.choice)
        prompt = prompt_ids(self._request, delta.choice, self._started.prompts) if first else UNSET
        logprobs = None if self._dialect.answers.logprobs else UNSET
        return encode(CompletionChoice("", delta.choice, logprobs, None, delta.ids, prompt_token_ids=prompt))

    def _echo(self, index: int) -> bytes:
        """The chunk of the echoed prompt; nothing if it has neither text nor tokens."""
        text = echoed(self._request, index, self._started.prompts)
        tokens = prompt_tokens(self._request, index, self._started.prompts)
        # With tokens, the offset counts their visible texts, as `completion_logprobs` does.
        visible = "".join(token.text for token in tokens if not token.special) if tokens else text
        self._offsets[index] = len(visible)
        logprobs = completion_logprobs(tokens, self._request.top_logprobs, 0)
        return self._chunk(self._choice(index, text, logprobs)) if text or logprobs else b""

    def _choice(
        self, index: int, text: str, logprobs: CompletionLogprobs | None = None, finish: str | None = None
    ) -> bytes:
        return encode(CompletionChoice(text, index, logprobs if self._dialect.answers.logprobs else UNSET, finish))
