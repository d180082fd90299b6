"""Answers of the generate extension: events to values of output tensors, and those to JSON, as frames or as one body.

With `n` > 1 every value is an array with one element per choice, as Triton writes tensors of more than one element. A
frame with text of one choice has "" for the others; nothing else identifies the choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from adapters.base import Headers, token_id_headers
from adapters.fold import visible_text
from adapters.formats.sse import guard
from adapters.optional import RunWriter
from adapters.triton.dialects import Dialect
from adapters.triton.failures import body as error_body
from adapters.triton.generate.request import outputs_of
from schemas.completion import Choice, Completion
from schemas.errors import GatewayError
from schemas.ir import (
    Delta,
    Event,
    Events,
    Finished,
    Generate,
    Output,
    Relayed,
    Started,
    TextPrompt,
    Token,
    TokenIds,
    Usage,
)
from schemas.triton import Details

EVENT_STREAM = "text/event-stream; charset=utf-8"

_json = msgspec.json.Encoder().encode
_NOTHING = Delta()


@dataclass(slots=True, eq=False)
class Progress:
    """The state of one choice after the frames written so far; `logprob` is the sum over its tokens."""

    finish_reason: str
    tokens: int = 0
    logprob: float = 0.0
    text: str = ""


Piece = Delta | Choice
"""The part of a choice that a response has: a delta, or all of it."""


class Values:
    """Turns pieces of choices into values of the requested outputs.

    Args:
        request: the request that is answered.
        dialect: the protocol's variant.

    Attributes:
        plain: whether the values of a piece are one text alone.
    """

    def __init__(self, request: Generate, dialect: Dialect) -> None:
        self._dialect = dialect
        self._wanted = [output.tensor for output in outputs_of(request)]
        choices = range(len(request.prompts) * request.n)
        # The fast path: the text alone, of one choice. In streams the prompts need no look: `echo` is refused there.
        self.plain = self._wanted == ["text_output"] and len(choices) == 1 and not dialect.answers.full_text
        self._choices = [] if self.plain else [Progress(dialect.wording.unfinished) for _ in choices]
        self._prompts = [_prompt_text(request, index) for index in choices] if request.echo else [""] * len(choices)
        self.prompt_tokens: int | None = None

    def piece(self, piece: Delta, usage: Usage | None = None) -> dict[str, Any]:
        """The values after one more piece; `usage` comes with the last."""
        if self.plain:
            return {"text_output": _text_of(piece)}
        # Every frame has a value for every choice: arrays are parallel, and "" stands for no news.
        choices = [piece if index == piece.choice else _NOTHING for index in range(len(self._choices))]
        return self._all(choices, usage)

    def whole(self, answer: Completion) -> dict[str, list[Any]]:
        """The values of a whole answer."""
        if self.plain and len(answer.choices) == 1:
            return {"text_output": [self._prompts[0] + _text_of(answer.choices[0])]}
        self.prompt_tokens = answer.usage.prompt_tokens
        return self._all(answer.choices, answer.usage)

    def _all(self, pieces: Sequence[Piece], usage: Usage | None) -> dict[str, list[Any]]:
        # All choices advance before any value is read: values depend on the state after the piece.
        counts = [self._advance(index, piece, usage) for index, piece in enumerate(pieces)]
        values = {
            name: [self._value(name, index, piece, counts[index]) for index, piece in enumerate(pieces)]
            for name in self._wanted
            if name not in ("num_input_tokens", "output_log_probs")
        }
        if "output_log_probs" in self._wanted:
            # One for each token of all choices, so it is flat.
            values["output_log_probs"] = [token.logprob or 0.0 for piece in pieces for token in piece.tokens]
        prompt_tokens = usage.prompt_tokens if usage else self.prompt_tokens
        if (
            "num_input_tokens" in self._wanted and prompt_tokens is not None
        ):  # some backends count the prompt only at the end
            values["num_input_tokens"] = [prompt_tokens]
        return values

    def _value(self, name: str, index: int, piece: Piece, counted: int) -> Any:
        choice = self._choices[index]
        match name:
            case "text_output":
                return self._shown(index, piece)
            case "finish_reason":
                return choice.finish_reason
            case "cumulative_logprob" | "cum_log_probs":
                return choice.logprob
            case "logprobs":
                return logprobs(piece.tokens)
            case "num_output_tokens":
                return counted
            case "details":
                return _details(choice, piece)
        return None

    def _advance(self, index: int, piece: Piece, usage: Usage | None) -> int:
        """Update a choice with a piece; the number of new tokens."""
        choice = self._choices[index]
        counted = len(piece.tokens)
        if isinstance(piece, Finished | Choice):
            choice.finish_reason = self._dialect.wording.finish_reasons[piece.reason]
            # Only with one choice is the total its own.
            total = usage.completion_tokens if usage and len(self._choices) == 1 else None
            total = piece.generated if piece.generated is not None else total
            # The counts of the frames add up to the exact total, even where earlier deltas had text without tokens.
            counted = counted if total is None else max(0, total - choice.tokens)
        choice.tokens += counted
        for token in piece.tokens:  # one by one: a sum of sums would depend on how the stream was split
            choice.logprob += token.logprob or 0.0
        return counted

    def _shown(self, index: int, piece: Piece) -> str:
        if not self._dialect.answers.full_text:
            return self._prompts[index] + _text_of(piece)
        choice = self._choices[index]
        choice.text += _text_of(piece)
        return choice.text


def _text_of(piece: Piece) -> str:
    """Text and refusal, for which the protocol has no field of its own."""
    return visible_text(piece) if isinstance(piece, Choice) else piece.text + piece.refusal


def _prompt_text(request: Generate, index: int) -> str:
    prompt = request.prompts[index // request.n]
    return prompt.text if isinstance(prompt, TextPrompt) else ""


def _details(choice: Progress, piece: Piece) -> Details:
    """MindIE's details. Its measurements are null, as in MindIE while they are unknown."""
    ended = isinstance(piece, Finished | Choice)
    return Details(choice.finish_reason if ended else msgspec.UNSET, choice.tokens)


def logprobs(tokens: Sequence[Token]) -> str:
    """The JSON text of vLLM's `logprobs`: one object per token, with the token itself and then the most likely tokens.

    Its members are named by token ids; unknown ids are negative numbers.
    """
    return _json([_logprob(token) for token in tokens]).decode()


def _logprob(token: Token) -> dict[str, dict[str, Any]]:
    ranked = {(top.id, top.text): (rank, top.logprob) for rank, top in enumerate(token.top, 1)}
    # The token itself comes first, whatever its rank, as vLLM writes it; `remote.decode_answer.read_tokens` relies on
    # the order.
    own_rank, _ = ranked.pop((token.id, token.text), (None, None))
    entries = [(token.id, token.text, token.logprob, own_rank)]
    entries += [(id, text, logprob, rank) for (id, text), (rank, logprob) in ranked.items()]
    return {
        # Keys must differ, so unknown ids get -1, -2, ... by position.
        str(-1 - position if id is None else id): {"logprob": logprob, "rank": rank, "decoded_token": text}
        for position, (id, text, logprob, rank) in enumerate(entries)
    }


# --- JSON -------------------------------------------------------------------------------------------------------


class Writer:
    """Writes the response objects of one answer. Members that do not change are encoded once.

    Triton writes members sorted by name (upper case first), MindIE in the order of its source.
    """

    def __init__(self, request: Generate, dialect: Dialect) -> None:
        answers, outputs = dialect.answers, outputs_of(request)
        id = request.client_request_id or (request.id if answers.always_id else "")
        # An id is of one answer, so nothing with one is kept.
        members = _members.__wrapped__ if id else _members
        self._members = members(request.model, answers.model_version, id, outputs, in_order=answers.sorted_keys)

    def around(self, tensor: str) -> tuple[bytes, bytes]:
        """The JSON of a response before and behind the value of its only tensor."""
        starts = [start for start, _ in self._members]
        place = [named for _, named in self._members].index(tensor) + 1
        return b"{" + b",".join(starts[:place]), b",".join([b"", *starts[place:]]) + b"}"

    def object(self, values: dict[str, Any]) -> bytes:
        """The JSON of one response; an array of one element is written as the element."""
        parts = [
            start + (_json(_unwrapped(values[tensor])) if tensor else b"")
            for start, tensor in self._members
            if not tensor or tensor in values
        ]
        return b"{" + b",".join(parts) + b"}"


@lru_cache(256)
def _members(
    model: str, version: str | None, id: str, outputs: tuple[Output, ...], *, in_order: bool
) -> tuple[tuple[bytes, str], ...]:
    """The members of a response: the JSON before a value, and the tensor of the value; "" for one that is known."""
    fixed: dict[str, Any] = {"id": id} if id else {}
    fixed |= {"model_name": model, "model_version": version}
    tensors = {output.name: output.tensor for output in outputs}
    names = [*fixed, *tensors]
    return tuple(
        (_json(name) + b":" + (_json(fixed[name]) if name in fixed else b""), tensors.get(name, ""))
        for name in (sorted(names) if in_order else names)
    )


def _unwrapped(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


class ResponseEncoder(ABC):
    """The encoder of one stream of responses: from events to the values of each response.

    Args:
        request: the request that is answered.
        dialect: the protocol's variant.
    """

    media_type: str
    # "The HTTP response code is set in the first response of the SSE" (the generate extension).
    status_waits = True

    def __init__(self, request: Generate, dialect: Dialect) -> None:
        self.headers: Headers = ()
        self.abort_after_error = dialect.answers.abort_on_error
        self._request = request
        self._dialect = dialect
        self._values = Values(request, dialect)
        # Choices without a `Finished`.
        self._open = len(request.prompts) * request.n
        self._last: Finished | None = None

    @abstractmethod
    def response(self, values: dict[str, Any], *, is_last: bool) -> bytes:
        """A response with these values; the last one has the last finish reason."""

    @abstractmethod
    def fail(self, error: GatewayError) -> bytes:
        """The error, which ends the stream without a finish reason."""

    def feed(self, events: Events) -> bytes:
        """The responses of these events."""
        return b"".join([self._event(event) for event in events])

    def _event(self, event: Event) -> bytes:
        if isinstance(event, Started):
            self._values.prompt_tokens = event.prompt_tokens
            self.headers = id_headers(self._request, event.token_ids)
        elif isinstance(event, Finished):
            self._open -= 1
            if self._open:
                return self._response(event)
            self._last = event  # written at `Usage`, which may have the only token count
        elif isinstance(event, Delta):
            return self._response(event) if event.text or event.tokens or event.refusal else b""
        elif isinstance(event, Usage):
            # No terminator follows: the response with the last finish reason is the end.
            return self._response(self._last, event) if self._last else b""
        return b""

    def _response(self, piece: Delta, usage: Usage | None = None) -> bytes:
        return self.response(self._values.piece(piece, usage), is_last=usage is not None)


class FrameEncoder(ResponseEncoder):
    """The encoder of one stream of `generate_stream`, which has no terminator: it ends with the connection."""

    media_type = EVENT_STREAM

    def __init__(self, request: Generate, dialect: Dialect) -> None:
        super().__init__(request, dialect)
        self._writer = Writer(request, dialect)
        self._relaying = False
        self._around: tuple[bytes, bytes] | None = None
        if self._values.plain:
            before, after = self._writer.around("text_output")
            self._around = dialect.answers.frame_prefix.encode() + guard(before), guard(after) + b"\n\n"

    def response(self, values: dict[str, Any], *, is_last: bool) -> bytes:  # noqa: ARG002 - the frames are alike
        """The values as a frame."""
        return frame(self._writer.object(values), self._dialect)

    def run_writer(self, choice: int) -> RunWriter | None:  # noqa: ARG002 - there is one
        """What writes texts alone, until more is fed; None: these are to be fed."""
        if self._around is None or self._relaying:
            return None
        return self._around[0] + b'"', b'"' + self._around[1]

    def fail(self, error: GatewayError) -> bytes:
        """The error as a frame."""
        return frame(error_body(error, self._dialect), self._dialect)

    def _event(self, event: Event) -> bytes:
        # The hot path. `type`, not `isinstance`: `Finished` is a `Delta`, too.
        if type(event) is Delta and self._around is not None and event.text and not self._relaying:
            return self._around[0] + guard(_json(_text_of(event))) + self._around[1]
        if isinstance(event, Relayed):
            self._relaying = True
            # Line breaks between JSON tokens would end the event's data.
            return frame(event.data.replace(b"\n", b""), self._dialect)
        if self._relaying and not isinstance(event, Started):
            return b""
        return super()._event(event)


def id_headers(request: Generate, ids: TokenIds) -> Headers:
    """The header about the source of token ids, if the answer has any: only its log-probabilities do."""
    return token_id_headers(ids) if any(output.tensor == "logprobs" for output in outputs_of(request)) else ()


def frame(body: bytes, dialect: Dialect) -> bytes:
    """An object as an event of a stream."""
    return dialect.answers.frame_prefix.encode() + guard(body) + b"\n\n"
