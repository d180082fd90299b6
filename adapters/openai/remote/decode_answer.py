"""Answers of remotes, whole and streamed, decoded to events. Reads all known servers of this protocol.

A stream is complete if and only if every choice has a finish reason; `[DONE]` is neither necessary nor sufficient.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

from adapters.base import Reply
from adapters.body import UNREADABLE
from adapters.formats.frames import FrameReader
from adapters.formats.sse import EventReader
from adapters.formats.text_runs import TextRuns
from adapters.openai.dialects import Dialect
from adapters.openai.remote.echo import without_echo
from adapters.openai.remote.encode_request import raw_fields, relays_answer
from adapters.openai.remote.failures import event_failure, is_error
from adapters.openai.remote.text_runs import learn
from adapters.openai.remote.thoughts import ThoughtReader, google_content, has_thought
from adapters.openai.remote.tokens import Aligner, remote_tokens
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

# Strategy: every field that any known server omits is optional in the wire structs, and the reader is strict only where
# the IR depends on it: the number of choices, one finish reason for each, nothing after it. Frozen empty structs stand
# for absent objects, so that the code below has no None checks.
_EMPTY_MESSAGE = RemoteMessage()
_NO_USAGE = RemoteUsage()
_NO_PROMPT_DETAILS = RemotePromptDetails()
_NO_COMPLETION_DETAILS = RemoteCompletionDetails()
_by_index = attrgetter("index")
_MOST_TRIES = 4
"""Chunks of a stream of which later ones may be repetitions: several choices, or some without what others have."""
_read = msgspec.json.Decoder(RemoteAnswer).decode


class StreamReader(FrameReader):
    """Reader of one stream. Whatever follows the end of the stream is ignored."""

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        self._events = EventReader()
        super().__init__(self._events)
        self._dialect = dialect
        self._request = request
        self._relays = relays_answer(dialect, request)
        self._expected = len(request.prompts) * request.n
        self._choices = {0: ChoiceReader(dialect, request, 0)}  # others when they come
        self._usage: RemoteUsage | None = None
        self._started = self._ended = False
        self._runs: TextRuns | None = None
        # A chunk that later ones may repeat with other texts: as received, decoded, and its last two events.
        self._example: tuple[bytes, RemoteAnswer, list[Event]] | None = None
        # Log-probabilities are aligned chunk by chunk.
        self._tries = 0 if request.logprobs else _MOST_TRIES

    def feed(self, data: bytes) -> Events:
        """The events completed by these bytes.

        Raises:
            schemas.errors.GatewayError: the remote reported an error or violated the protocol.
        """
        # In the first read nothing can be a run: the search for one would delay its text.
        may_be_run = self._example is not None or self._runs is not None
        if may_be_run and (events := self.run(data)):
            return events
        return super().feed(data)

    def run(self, data: bytes) -> Events:
        """The events of a run of texts; () of anything else, which `feed` has to decode."""
        runs = self._learned()
        if runs is None or self._ended or not self._events.between_events or (run := runs.read(data)) is None:
            return ()
        self._choices[runs.choice].generated += len(run.texts) - run.texts.count(b"")
        if not self._relays:  # a delta for each chunk, of which the client gets as many
            return tuple([Delta(runs.choice, text.decode()) for text in run.texts if text])
        relayed = Relayed(run.relayed, framed=True)
        return (relayed, Delta(runs.choice, run.text)) if run.text else (relayed,)

    def framed_runs(self) -> tuple[TextRuns, bool] | None:
        """What runs look like in the transfer coding, and whether they are relayed as they came.

        To be asked again after each call of `feed`.
        """
        runs = self._learned()
        if runs is None or self._ended or not self._events.between_events:
            return None
        return (runs, self._relays) if runs.as_they_came or not self._relays else None

    def pass_by(self, texts: int) -> None:
        """Count texts that were found so."""
        assert self._runs is not None
        self._choices[self._runs.choice].generated += texts

    def close(self) -> Events:
        """The events that end the stream, once the connection was closed or `[DONE]` was read."""
        if self._ended:
            return ()
        # The number of finish reasons decides, not `[DONE]`: some servers never send it, and it may follow an answer
        # that broke off.
        if sum(choice.finished for choice in self._choices.values()) < self._expected:
            raise Incomplete("The backend's stream ended before it was finished.")
        self._ended = True
        return (read_usage(self._usage, sum(choice.generated for choice in self._choices.values())),)

    def _frame(self, data: bytes, out: list[Event]) -> None:
        if self._ended:
            return
        if data == b"[DONE]":
            out.extend(self.close())
        elif data:
            chunk = decode_answer(data)
            if self._relays:
                # Relayed only after it was decoded: an error or a malformed chunk is raised, not forwarded.
                self._relay(data, chunk, out)
            self._chunk(chunk, out)
            if self._runs is not None and not self._choices[self._runs.choice].takes_text:
                self._runs = None
            elif self._tries and out and type(out[-1]) is Delta:
                self._example = data, chunk, out[-2:]

    def _learned(self) -> TextRuns | None:
        """What chunks have around their texts, learned from the last one that was kept.

        Called when the next read is there, and not before: the first text does not wait for it.
        """
        if self._example is None:
            return self._runs
        (data, chunk, events), self._example = self._example, None
        sent, delta = data, events[-1]
        if self._relays:
            sent = events[0].data if isinstance(events[0], Relayed) else b""  # nothing: the client gets another chunk
        if sent and isinstance(delta, Delta) and delta == Delta(delta.choice, delta.text):
            self._tries -= 1  # chunks with a number or a time of their own are never alike
            if self._choices[delta.choice].takes_text:
                self._runs = learn(data, sent, chunk) or self._runs
        return self._runs

    def _relay(self, data: bytes, chunk: RemoteAnswer, out: list[Event]) -> None:
        """Relay the chunk, without a usage that the gateway asked for and the client did not."""
        # The usage chunk that the gateway asked for has no choices: it is left out as a whole. In other chunks the
        # field is null or (vLLM) the usage so far. The search in the bytes saves decoding the fields of most chunks.
        if not self._request.stream_usage and self._dialect.remote.ask_usage and b'"usage"' in data:
            if not chunk.choices:
                return
            fields = raw_fields(data)
            fields.pop("usage", None)
            data = msgspec.json.encode(fields)
        out.append(Relayed(data))

    def _chunk(self, chunk: RemoteAnswer, out: list[Event]) -> None:
        # Some proxy's JSON without any field of a chunk. `choices: []` alone is fine: Azure begins streams so.
        if chunk.choices is None and chunk.usage is None:
            raise malformed("an event that is no chunk")
        if not self._started:
            self._started = True
            counted = None if chunk.usage is None else chunk.usage.prompt_tokens
            out.append(Started(chunk.model or self._request.model, counted))
        # The last usage counts: servers that send one in every chunk count up.
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            reader = self._choices.get(choice.index)
            if reader is None:
                # Bounds the number of readers, too: the index is the remote's.
                if not 0 <= choice.index < self._expected:
                    raise malformed("a choice that was not asked for")
                reader = self._choices[choice.index] = ChoiceReader(self._dialect, self._request, choice.index)
            out.extend(reader.feed(choice, choice.delta or choice.message or _EMPTY_MESSAGE))


class ChoiceReader:
    """Reader of one choice.

    Attributes:
        finished: whether the choice has its finish reason.
        generated: number of tokens so far, a lower bound: a delta without tokens counts as one.
    """

    __slots__ = ("_aligner", "_calls", "_dialect", "_ids", "_index", "_request", "_thoughts", "finished", "generated")

    def __init__(self, dialect: Dialect, request: Generate, index: int) -> None:
        self._dialect = dialect
        self._request = request
        self._index = index
        # Without requested log-probabilities those of a remote that always sends them are dropped.
        self._aligner = Aligner(request.top_logprobs) if request.logprobs else None
        self._calls: dict[int, int] = {}  # the remote's index -> the number of its last call
        self._ids: list[str] = []  # of the calls, as the remote wrote them
        self._thoughts: ThoughtReader | None = None  # once some are flagged
        self.finished = False
        self.generated = 0

    @property
    def takes_text(self) -> bool:
        """Whether a text that comes alone is a part of the answer as it is."""
        return not self.finished and self._thoughts is None

    def feed(self, choice: RemoteChoice, message: RemoteMessage) -> Events:
        """The event of a chunk or message of the choice; none if it adds nothing."""
        text, reasoning = read_content(message)
        # A chat has `delta` or `message`, a completion `text`: never both.
        text += choice.text or ""
        if self._thoughts is not None or message.extra_content is not None:
            text, thought = self._tell_thoughts(text, message, ended=bool(choice.finish_reason))
            reasoning += thought
        tokens = () if self._aligner is None else self._aligner.feed(remote_tokens(choice.logprobs), text)
        refusal = message.refusal or ""
        calls: tuple[ToolDelta, ...] = ()
        if message.tool_calls:
            calls = tuple(self._call(place, call) for place, call in enumerate(message.tool_calls))
        empty = not (text or tokens or reasoning or refusal or calls)
        # Some servers send an empty delta after the finish reason.
        if self.finished:
            if empty:
                return ()
            raise malformed("more of a choice that was finished")
        self.generated += len(tokens) or (not empty)
        # Falsy, not None: some servers send "" in every chunk but the last.
        if not choice.finish_reason:
            return () if empty else (Delta(self._index, text, tokens, reasoning, refusal, calls),)
        self.finished = True
        reason, stop = read_finish(self._dialect, choice)
        # OpenAI's reason is "stop" for the call of a named tool. Agents of other protocols take that for their answer.
        if self._ids and reason is FinishReason.EOS:
            reason = FinishReason.TOOL_CALL
        return (Finished(self._index, text, tokens, reasoning, refusal, calls, reason=reason, stop=stop),)

    def _tell_thoughts(self, text: str, message: RemoteMessage, *, ended: bool) -> tuple[str, str]:
        """The text and the thoughts of a piece of content; thoughts are flagged beside it."""
        flagged = has_thought(message.extra_content)
        if self._thoughts is None:
            if not flagged:
                return text, ""
            # Log-probabilities are those of the content with its tags, which are no text.
            self._thoughts, self._aligner = ThoughtReader(), None
        text, thought = self._thoughts.feed(text, flagged=flagged)
        return text, thought + (self._thoughts.close() if ended else "")

    def _call(self, place: int, call: RemoteToolCall) -> ToolDelta:
        """A part of a tool call. Some servers repeat id and name in every part, others give no id at all."""
        # Whole answers have no `index`; neither do the chunks of servers that send each call as a whole.
        index = place if call.index is None else call.index
        function = call.function or RemoteFunction()
        arguments = function.arguments or ""
        number = self._calls.get(index)
        # Google's chunks have no index, or always 0: another call has another id and a name.
        is_another = bool(number is not None and call.id and function.name and call.id != self._ids[number])
        # Later parts add arguments only: id and name went out with the first.
        if number is not None and not is_another:
            return ToolDelta(number, arguments=arguments)
        number = self._calls[index] = len(self._ids)
        self._ids.append(call.id or "")
        id = call.id or f"call_{self._request.id}_{self._index}_{number}"
        signature = google_content(call.extra_content).get("thought_signature")
        return ToolDelta(number, id, function.name, arguments, signature if isinstance(signature, str) else None)


def read_answer(dialect: Dialect, request: Generate, reply: Reply) -> Events:
    """A whole answer as the complete stream of its events.

    Raises:
        schemas.errors.BackendError: the answer is an error, malformed or not finished.
    """
    answer = decode_answer(reply.body)
    # The order of choices is not guaranteed.
    choices = sorted(answer.choices or (), key=_by_index)
    if len(choices) != expected_choices(request):
        raise malformed("other choices than asked for")
    prompts: list[tuple[Token, ...]] = []
    out: list[Event] = []
    generated = 0
    for index, echoed in enumerate(choices):
        if echoed.index != index:
            raise malformed("other choices than asked for")
        choice, prompt = (echoed, ()) if echoed.logprobs is None else without_echo(request, echoed, answer.usage)
        # Every choice echoes its prompt; the first choice of each prompt is enough.
        if request.prompt_logprobs and index % request.n == 0:
            prompts.append(prompt)
        reader = ChoiceReader(dialect, request, index)
        out.extend(reader.feed(choice, choice.message or choice.delta or _EMPTY_MESSAGE))
        if not reader.finished:
            raise Incomplete("The backend's answer was not finished.")
        generated += reader.generated
    usage = read_usage(answer.usage, generated)
    counted = None if answer.usage is None else usage.prompt_tokens
    started = Started(answer.model or request.model, counted, tuple(prompts))
    relayed = (Relayed(reply.body),) if relays_answer(dialect, request) else ()
    return (*relayed, started, *out, usage)


def expected_choices(request: Generate) -> int:
    """The number of choices that the request asks for."""
    return len(request.prompts) * request.n


def decode_answer(data: bytes) -> RemoteAnswer:
    """Decode a whole answer or an event.

    Raises:
        schemas.errors.GatewayError: it is an error, or malformed.
    """
    try:
        answer = _read(data)
    except UNREADABLE:
        raise malformed("not the protocol's JSON") from None
    if is_error(answer):
        raise event_failure(answer)
    return answer


def read_finish(dialect: Dialect, choice: RemoteChoice) -> tuple[FinishReason, str | None]:
    """The finish reason of a choice, and its stop string, which vLLM gives.

    Raises:
        schemas.errors.BackendFailed: the finish reason is unknown.
    """
    reason = dialect.remote.reasons.get(choice.finish_reason or "")
    if reason is None:
        raise malformed("an end for an unknown reason")
    # vLLM's `finish_reason` is "stop" for all three ends; its `stop_reason` tells them apart: null is the end token, a
    # string the stop string, a number the stop token.
    if reason is FinishReason.EOS and isinstance(choice.stop_reason, str):
        return FinishReason.STOP_STRING, choice.stop_reason
    if reason is FinishReason.EOS and isinstance(choice.stop_reason, int):
        return FinishReason.STOP_TOKEN, None
    return reason, None


def read_content(message: RemoteMessage) -> tuple[str, str]:
    """The text and the reasoning of a message."""
    reasoning = message.reasoning_content or message.reasoning or ""
    # Databricks' and Mistral's reasoning models send a list of parts. Parts of other types (references) are skipped.
    if not isinstance(message.content, tuple):
        return message.content or "", reasoning
    text = "".join(part.text or "" for part in message.content if part.type == "text")
    return text, reasoning + "".join(map(_thoughts, message.content))


def read_usage(usage: RemoteUsage | None, generated: int) -> Usage:
    """The token counts. Without them the prompt's count is 0 and the answer's is `generated`, a lower bound."""
    usage = usage or _NO_USAGE
    prompt = usage.prompt_tokens_details or _NO_PROMPT_DETAILS
    completion = usage.completion_tokens_details or _NO_COMPLETION_DETAILS
    count = generated if usage.completion_tokens is None else usage.completion_tokens
    return Usage(usage.prompt_tokens, count, prompt.cached_tokens, completion.reasoning_tokens)


def _thoughts(part: RemotePart) -> str:
    """The reasoning in a part of the content; "" in parts of other types."""
    if part.type == "thinking" and isinstance(part.thinking, str):
        return part.thinking
    pieces = {"reasoning": part.summary, "thinking": part.thinking}.get(part.type) or ()
    return "".join(piece.text or "" for piece in pieces if isinstance(piece, RemotePart))
