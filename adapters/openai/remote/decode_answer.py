"""A remote's answers, whole and streamed, to events. Reads every server of this protocol that we know of.

A stream is complete if and only if every choice told its finish reason; `[DONE]` is neither needed nor enough.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

from adapters.base import Reply
from adapters.body import UNREADABLE
from adapters.frames import FrameReader
from adapters.openai.dialects import Dialect
from adapters.openai.remote.echo import without_echo
from adapters.openai.remote.encode_request import passes_back, raw_fields
from adapters.openai.remote.failures import event_failure, is_error
from adapters.openai.remote.tokens import Aligner, told_tokens
from adapters.remote_failures import malformed
from schemas.errors import Incomplete
from schemas.ir import Delta, Event, Events, Finished, FinishReason, Generate, Relayed, Started, Token, ToolDelta, Usage
from schemas.openai.remote import (
    RemoteAnswer,
    RemoteChoice,
    RemoteCompletionDetails,
    RemoteFunction,
    RemoteMessage,
    RemotePart,
    RemotePromptDetails,
    RemoteToolCall,
    RemoteUsage,
)

_NOTHING = RemoteMessage()
_NO_USAGE = RemoteUsage()
_NO_PROMPT_DETAILS = RemotePromptDetails()
_NO_COMPLETION_DETAILS = RemoteCompletionDetails()
_by_index = attrgetter("index")
_read = msgspec.json.Decoder(RemoteAnswer).decode


class StreamReader(FrameReader):
    """One stream being read; what follows its end is ignored."""

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        super().__init__()
        self._dialect = dialect
        self._request = request
        self._relays = passes_back(dialect, request)
        self._choices: dict[int, ChoiceReader] = {}
        self._usage: RemoteUsage | None = None
        self._started = self._ended = False

    def close(self) -> Events:
        """The connection, or what was sent, ended."""
        if self._ended:
            return ()
        if sum(choice.finished for choice in self._choices.values()) < expected_choices(self._request):
            raise Incomplete("The backend's stream ended before it was finished.")
        self._ended = True
        return (read_usage(self._usage, sum(choice.told for choice in self._choices.values())),)

    def _frame(self, data: bytes, out: list[Event]) -> None:
        if self._ended:
            return
        if data == b"[DONE]":
            out.extend(self.close())
        elif data:
            chunk = decode_answer(data)
            if self._relays:
                self._relay(data, chunk, out)
            self._chunk(chunk, out)

    def _relay(self, data: bytes, chunk: RemoteAnswer, out: list[Event]) -> None:
        """Pass the chunk on, without the usage that we asked for and the client did not."""
        if not self._request.stream_usage and self._dialect.remote.ask_usage and b'"usage"' in data:
            if not chunk.choices:
                return
            fields = raw_fields(data)
            fields.pop("usage", None)
            data = msgspec.json.encode(fields)
        out.append(Relayed(data))

    def _chunk(self, chunk: RemoteAnswer, out: list[Event]) -> None:
        if chunk.choices is None and chunk.usage is None:
            raise malformed("an event that is no chunk")
        if not self._started:
            self._started = True
            counted = None if chunk.usage is None else chunk.usage.prompt_tokens
            out.append(Started(chunk.model or self._request.model, counted))
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            reader = self._choices.get(choice.index)
            if reader is None:
                if not 0 <= choice.index < expected_choices(self._request):
                    raise malformed("a choice that was not asked for")
                reader = self._choices[choice.index] = ChoiceReader(self._dialect, self._request, choice.index)
            out.extend(reader.feed(choice, choice.delta or choice.message or _NOTHING))


class ChoiceReader:
    """One choice being read; `told` is how many tokens it had at the least."""

    __slots__ = ("_aligner", "_calls", "_dialect", "_index", "_request", "finished", "told")

    def __init__(self, dialect: Dialect, request: Generate, index: int) -> None:
        self._dialect = dialect
        self._request = request
        self._index = index
        self._aligner = Aligner(request.top_logprobs) if request.logprobs else None
        self._calls: set[int] = set()
        self.finished = False
        self.told = 0

    def feed(self, choice: RemoteChoice, message: RemoteMessage) -> Events:
        """What the choice gained, if anything."""
        text, thought = read_content(message)
        text += choice.text or ""
        tokens = () if self._aligner is None else self._aligner.feed(told_tokens(choice.logprobs), text)
        refusal = message.refusal or ""
        calls = self._pieces(message.tool_calls) if message.tool_calls else ()
        silent = not (text or tokens or thought or refusal or calls)
        if self.finished:
            if silent:
                return ()
            raise malformed("more of a choice that was finished")
        self.told += len(tokens) or (not silent)
        if not choice.finish_reason:
            return () if silent else (Delta(self._index, text, tokens, thought, refusal, calls),)
        self.finished = True
        reason, stop = read_finish(self._dialect, choice)
        return (Finished(self._index, text, tokens, thought, refusal, calls, reason=reason, stop=stop),)

    def _pieces(self, calls: tuple[RemoteToolCall, ...]) -> tuple[ToolDelta, ...]:
        return tuple(self._call(place, call) for place, call in enumerate(calls))

    def _call(self, place: int, call: RemoteToolCall) -> ToolDelta:
        """A piece of a call; some servers repeat id and name with every piece, some give no id at all."""
        index = place if call.index is None else call.index
        function = call.function or RemoteFunction()
        arguments = function.arguments or ""
        if index in self._calls:
            return ToolDelta(index, arguments=arguments)
        self._calls.add(index)
        id = call.id or f"call_{self._request.id}_{self._index}_{index}"
        return ToolDelta(index, id, function.name, arguments)


def read_answer(dialect: Dialect, request: Generate, reply: Reply) -> Events:
    """A whole answer as the complete stream of its events.

    Raises:
        schemas.errors.BackendError: it makes no sense, or was not finished.
    """
    answer = decode_answer(reply.body)
    choices = sorted(answer.choices or (), key=_by_index)
    if len(choices) != expected_choices(request):
        raise malformed("other choices than asked for")
    prompts: list[tuple[Token, ...]] = []
    out: list[Event] = []
    told = 0
    for index, whole in enumerate(choices):
        if whole.index != index:
            raise malformed("other choices than asked for")
        choice, prompt = without_echo(request, whole, answer.usage)
        if request.prompt_logprobs and index % request.n == 0:
            prompts.append(prompt)
        reader = ChoiceReader(dialect, request, index)
        out.extend(reader.feed(choice, choice.message or choice.delta or _NOTHING))
        if not reader.finished:
            raise Incomplete("The backend's answer was not finished.")
        told += reader.told
    usage = read_usage(answer.usage, told)
    counted = None if answer.usage is None else usage.prompt_tokens
    started = Started(answer.model or request.model, counted, tuple(prompts))
    relayed = (Relayed(reply.body),) if passes_back(dialect, request) else ()
    return (*relayed, started, *out, usage)


def expected_choices(request: Generate) -> int:
    """How many answers were asked for."""
    return len(request.prompts) * request.n


def decode_answer(data: bytes) -> RemoteAnswer:
    """An answer, or an event of one.

    Raises:
        schemas.errors.GatewayError: it is an error, or cannot be read.
    """
    try:
        answer = _read(data)
    except UNREADABLE:
        raise malformed("not the protocol's JSON") from None
    if is_error(answer):
        raise event_failure(answer)
    return answer


def read_finish(dialect: Dialect, choice: RemoteChoice) -> tuple[FinishReason, str | None]:
    """Why a choice ended, and at which stop string, where vLLM tells it.

    Raises:
        schemas.errors.BackendFailed: for none of the reasons that an answer ends for.
    """
    reason = dialect.remote.reasons.get(choice.finish_reason or "")
    if reason is None:
        raise malformed("an end for an unknown reason")
    if reason is FinishReason.EOS and isinstance(choice.stop_reason, str):
        return FinishReason.STOP_STRING, choice.stop_reason
    if reason is FinishReason.EOS and isinstance(choice.stop_reason, int):
        return FinishReason.STOP_TOKEN, None
    return reason, None


def read_content(message: RemoteMessage) -> tuple[str, str]:
    """The text and the reasoning of a message."""
    thought = message.reasoning_content or message.reasoning or ""
    if not isinstance(message.content, tuple):
        return message.content or "", thought
    text = "".join(part.text or "" for part in message.content if part.type == "text")
    return text, thought + "".join(_summary(part) for part in message.content if part.type == "reasoning")


def read_usage(usage: RemoteUsage | None, told: int) -> Usage:
    """The counts. A remote that tells none: the prompt's is 0, the answer's what was seen of it, a lower bound."""
    usage = usage or _NO_USAGE
    prompt = usage.prompt_tokens_details or _NO_PROMPT_DETAILS
    completion = usage.completion_tokens_details or _NO_COMPLETION_DETAILS
    count = told if usage.completion_tokens is None else usage.completion_tokens
    return Usage(usage.prompt_tokens, count, prompt.cached_tokens, completion.reasoning_tokens)


def _summary(part: RemotePart) -> str:
    return "".join(piece.text or "" for piece in part.summary or ())
