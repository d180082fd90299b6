"""Responses of remotes to events: the frames of a stream, or the one response of `generate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from adapters.body import UNREADABLE
from adapters.formats.frames import FrameReader, Frames
from adapters.remote_failures import failed, malformed
from adapters.triton.dialects import Dialect
from adapters.triton.remote.relay import passes_back, relayed
from schemas.errors import Incomplete
from schemas.ir import Delta, Event, Events, Finished, FinishReason, Generate, Started, Token, TopToken, Usage
from schemas.triton import RemoteLogprob, RemoteResponse

# Strategy: values of one choice are scalars, those of several choices arrays; `_per_choice` makes lists of both. Each
# response is checked against the number of choices asked for, and each choice ends once.
T = TypeVar("T")

_responses = msgspec.json.Decoder(RemoteResponse)
_logprobs = msgspec.json.Decoder(list[dict[str, RemoteLogprob]] | None)


@dataclass(slots=True, eq=False)
class _Choice:
    """The state of one choice after the responses so far; `generated` is None if the remote does not count tokens."""

    generated: int | None = None
    text: str = ""
    finished: bool = False


class AnswerReader(FrameReader):
    """The decoder of one answer, which is complete once every choice has a finish reason.

    Args:
        request: the request that is answered.
        dialect: that of the remote.
        frames: cuts the bytes into frames; server-sent events if it is None.
    """

    def __init__(self, request: Generate, dialect: Dialect, frames: Frames | None = None) -> None:
        super().__init__(frames)
        self._dialect = dialect
        self._request = request
        self._relays = passes_back(dialect, request)
        self._model = request.model
        self._tops = request.top_logprobs
        self._choices = [_Choice() for _ in range(len(request.prompts) * request.n)]
        self._started = False
        self._complete = False
        self._prompt_tokens: int | None = None

    def response(self, data: bytes) -> Events:
        """The events of one response object.

        Raises:
            schemas.errors.BackendError: the response is an error or violates the protocol.
        """
        try:
            response = _responses.decode(data)
        except UNREADABLE:
            raise malformed("it is not JSON of the expected form") from None
        if response.error is not None:
            raise failed()
        # The relayed bytes come before the events decoded from them.
        passed_on = (relayed(self._dialect, self._request, data),) if self._relays and not self._complete else ()
        return (*passed_on, *self.answered(response))

    def answered(self, response: RemoteResponse) -> Events:
        """The events of one response.

        Raises:
            schemas.errors.BackendError: it violates the protocol.
        """
        if self._complete:
            raise malformed("it goes on after its end")
        # Before `_start`: `Started` takes the count of the first response.
        if response.num_input_tokens is not None:
            self._prompt_tokens = response.num_input_tokens
        return (*self._start(response.model_name), *self._pieces(response), *self._end())

    def close(self) -> Events:
        """Handle the end of the connection: the remaining events.

        Raises:
            schemas.errors.Incomplete: the answer is not complete.
        """
        if self._complete:
            return ()
        # Half a frame is a broken connection, even where a clean end is enough.
        if self._frames.pending or self._dialect.remote.finish_reason_output:
            raise Incomplete("The backend's answer stopped before it was finished.")
        finishes = [
            self._finish(index, choice, FinishReason.EOS, Delta(choice=index))
            for index, choice in enumerate(self._choices)
            if not choice.finished
        ]
        return (*self._start(None), *finishes, *self._end())

    def _frame(self, data: bytes, out: list[Event]) -> None:
        if data:  # an empty frame is a keep-alive
            out.extend(self.response(data))

    def _start(self, model: str | None) -> Events:
        if self._started:
            return ()
        self._started = True
        return (Started(model or self._model, self._prompt_tokens),)

    def _end(self) -> Events:
        self._complete = all(choice.finished for choice in self._choices)
        if not self._complete:
            return ()
        return (Usage(self._prompt_tokens or 0, sum(choice.generated or 0 for choice in self._choices)),)

    def _pieces(self, response: RemoteResponse) -> list[Event]:
        texts = self._per_choice(response.text_output)
        if texts is None:
            raise malformed("a response has no text_output")
        details = response.details
        # MindIE has the reason in `details`, vLLM's backend in an output.
        reason: Any = details.finish_reason or None if details else response.finish_reason
        reasons = self._per_choice(reason) or [""] * len(texts)
        counts = self._per_choice(response.num_output_tokens)
        scores = self._per_choice(response.logprobs)
        events: list[Event] = []
        for index, choice in enumerate(self._choices):
            if counts:
                # vLLM's backend sends the count of each frame, MindIE the total so far.
                choice.generated = (choice.generated or 0) + counts[index]
            if details and details.generated_tokens is not None:
                choice.generated = details.generated_tokens
            text = self._new_text(choice, texts[index])
            tokens = read_tokens(scores[index], text, self._tops) if scores else ()
            event = self._piece(index, choice, reasons[index], Delta(index, text, tokens))
            if event is not None:
                events.append(event)
        return events

    def _per_choice(self, value: T | list[T] | None) -> list[T] | None:
        if value is None:
            return None
        values = value if isinstance(value, list) else [value]
        if len(values) != len(self._choices):
            raise malformed("a response is about another number of choices than was asked for")
        return values

    def _new_text(self, choice: _Choice, text: str) -> str:
        if not self._dialect.answers.full_text:
            return text
        if not text.startswith(choice.text):
            raise malformed("the text so far has changed")
        # The whole text so far is kept, its new end is returned.
        text, choice.text = text[len(choice.text) :], text
        return text

    def _piece(self, index: int, choice: _Choice, reason: str, delta: Delta) -> Event | None:
        if choice.finished:
            # Frames go on until the last choice has ended, with "" for those that have.
            if delta.text:
                raise malformed("a choice goes on after its end")
            return None
        if reason not in ("", self._dialect.wording.unfinished):
            end = self._dialect.remote.ends.get(reason)
            if end is None:  # such as "abort", or MindIE's "stop_sequence": the answer was cut off
                raise failed()
            return self._finish(index, choice, end, delta)
        return delta if delta.text or delta.tokens else None

    def _finish(self, index: int, choice: _Choice, reason: FinishReason, delta: Delta) -> Finished:
        choice.finished = True
        return Finished(index, delta.text, delta.tokens, reason=reason, generated=choice.generated)


def read_tokens(text: str, shown: str, tops: int) -> tuple[Token, ...]:
    """The tokens of vLLM's `logprobs` output. A token that is not part of the `shown` text is special.

    A position's object has the token itself and then the `tops` most likely tokens, without the token itself.

    Raises:
        schemas.errors.BackendError: the output violates the protocol.
    """
    try:
        positions = _logprobs.decode(text) or []
    except UNREADABLE:
        raise malformed("its logprobs are not JSON of the expected form") from None
    tokens = []
    for position in positions:
        if not position:
            raise malformed("a token has no logprobs")
        # JSON objects keep their order: vLLM writes the sampled token first.
        name, own = next(iter(position.items()))
        token = own.decoded_token or ""
        # vLLM's output marks no special tokens: what is not in the text must be one.
        special = not shown.startswith(token)
        shown = shown if special else shown[len(token) :]
        tokens.append(Token(_id(name), token, own.logprob, special, _top(position, tops)))
    return tuple(tokens)


def _top(position: dict[str, RemoteLogprob], tops: int) -> tuple[TopToken, ...]:
    ranked = [(entry.rank, name, entry) for name, entry in position.items() if entry.rank is not None]
    return tuple(
        TopToken(_id(name), entry.decoded_token or "", entry.logprob or 0.0)
        for rank, name, entry in sorted(ranked, key=lambda found: found[0])
        # vLLM adds the sampled token, whatever its rank: beyond `tops` it is no alternative.
        if rank <= tops
    )


def _id(name: str) -> int | None:
    """The token id that names a member; None for a negative number, which stands for an unknown id."""
    # The length bounds `int`.
    return int(name) if name.isdecimal() and len(name) < 20 else None
