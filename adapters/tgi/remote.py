"""Answers of remotes to events, streamed or not, in every dialect and MindIE's form of 2026.

A stream is complete if and only if it has its last frame, the one with `generated_text`.

An answer of a remote of the client's own dialect is forwarded, with fields that this server does not know. A remote is
always asked for details, and never for the prompt. So details that the client did not request are removed; an answer
that must repeat the prompt is not forwarded but encoded anew.
"""

from __future__ import annotations

import msgspec

from adapters.base import Reply
from adapters.formats.frames import FrameReader
from adapters.remote_failures import header_number, malformed, read_json
from adapters.tgi.dialects import Dialect
from adapters.tgi.remote_failures import event_failure
from adapters.tgi.stops import StopCutter, cut, visible
from schemas.errors import BackendFailed, Fault, Incomplete, UnsupportedFeature
from schemas.ir import (
    Delta,
    Event,
    Events,
    Finished,
    FinishReason,
    Generate,
    Relayed,
    Started,
    Token,
    TopToken,
    Usage,
)
from schemas.tgi import RemoteAnswer, RemoteSequence, RemoteToken


class StreamReader(FrameReader):
    """The decoder of one stream; frames after the last one are ignored."""

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        super().__init__()
        self._dialect = dialect
        self._request = request
        self._relays = passes_back(dialect, request)
        self._started = self._finished = False
        # For MindIE's `fullTextEnabled`, where each frame repeats the whole text.
        self._so_far = ""
        # TGI leaves a matched stop sequence in the text. Only if the client wants it removed are tokens held back.
        cutting = dialect.answers.include_stop and request.stopping.stop and not request.stopping.include_stop
        self._cutter = StopCutter(request.stopping.stop) if cutting else None

    def close(self) -> Events:
        """Handle the end of the connection."""
        if not self._finished:
            raise Incomplete("The backend's stream ended before it was finished.")
        return ()

    def _frame(self, data: bytes, out: list[Event]) -> None:
        if self._finished:
            return
        frame = read_json(data, RemoteAnswer)
        if frame.error is not None:
            raise event_failure(frame)
        # Before the checks below, but after the error: a relayed frame is followed by the events decoded from it.
        if self._relays:
            out.append(relayed(self._request, data, detailed=frame.details is not None))
        if frame.token is None:
            raise malformed("a frame without a token")
        if not self._started:
            self._started = True
            out.append(Started(self._request.model))
        tokens = self._tokens(frame.token, frame)
        if frame.generated_text is None:
            if self._cutter is not None:
                tokens = [free for token in tokens for free in self._cutter.feed(token)]
            if tokens:
                out.append(Delta(text=visible(tokens), tokens=tuple(tokens)))
        else:
            out.extend(self._end(tokens, frame.details))
            self._finished = True

    def _tokens(self, token: RemoteToken, frame: RemoteAnswer) -> list[Token]:
        text = token.text or ""
        if self._dialect.answers.full_text:
            if not text.startswith(self._so_far):
                raise malformed("a text that does not continue the one before")
            self._so_far, text = text, text[len(self._so_far) :]
        # MindIE of 2026 may put several tokens into one frame, with one text.
        first, *more = _ids(token)
        # MindIE sends the end token without text and without marking it as special.
        ends = (
            frame.details is not None and frame.details.finish_reason == self._dialect.wording.finish[FinishReason.EOS]
        )
        special = bool(token.special) or (token.special is None and ends and not text)
        top = _top(frame.top_tokens) if self._request.top_logprobs else ()
        return [Token(first, text, token.logprob, special, top), *(Token(id, "") for id in more)]

    def _end(self, tokens: list[Token], details: RemoteSequence | None) -> Events:
        if details is None:
            raise malformed("no details although asked for")
        reason, stop = _reason(self._dialect, details), None
        if self._cutter is not None:
            # Through the cutter, not around it: a stop sequence may span earlier tokens that are still held back.
            released = [free for token in tokens for free in self._cutter.feed(token)]
            rest, stop = self._cutter.end(reason is FinishReason.STOP_STRING)
            tokens = [*released, *rest]
        finished = Finished(
            text=visible(tokens),
            tokens=tuple(tokens),
            reason=reason,
            generated=details.generated_tokens,
            stop=stop,
            seed=details.seed,
        )
        return (finished, Usage(_prompt_tokens(details), details.generated_tokens))


def read_answer(dialect: Dialect, request: Generate, reply: Reply) -> Events:
    """The events of a non-streamed answer, which on `/` is a list of one.

    Raises:
        schemas.errors.BackendError: the answer is an error or violates the protocol.
        schemas.errors.UnsupportedFeature: the request is for the log-probabilities of its prompt, which the server
            leaves out.
    """
    body = reply.body
    answer: RemoteAnswer | tuple[RemoteAnswer, ...]
    answer = read_json(body, RemoteAnswer | tuple[RemoteAnswer, ...])  # type: ignore[arg-type]
    if isinstance(answer, tuple):
        if len(answer) != 1:
            raise malformed("a list of more or less than one answer")
        [answer] = answer
        # The same element as bytes, for the relay.
        [body] = read_json(body, list[msgspec.Raw])
    if answer.error is not None:
        raise event_failure(answer)
    details = answer.details
    if details is None or answer.generated_text is None:
        raise malformed("no text, or no details although asked for")
    # `best_of_sequences` has the others, so the answer itself is the first.
    sequences = (details, *(details.best_of_sequences or ()))
    if len(sequences) != request.n:
        raise malformed("more or less answers than asked for")
    texts = (answer.generated_text, *(sequence.generated_text for sequence in sequences[1:]))
    finishes = tuple(
        _choice(dialect, request, index, text, sequence)
        for index, (text, sequence) in enumerate(zip(texts, sequences, strict=True))
    )
    header = next((value for name, value in reply.headers if name.lower() == "x-prompt-tokens"), "")
    # TGI 3 does not count the prompt in the details of whole answers; its header does.
    count = header_number(header)
    prompt_tokens = _prompt_tokens(details) if count is None else count
    is_from_tgi = request.origin is not None and request.origin.protocol == "tgi"
    is_empty = 0 in (count, details.input_length, details.prompt_tokens)
    # A TGI client gets the server's own empty list.
    if request.prompt_logprobs and not (details.prefill or is_empty or is_from_tgi):
        raise _no_prefill()
    prompt = tuple(Token(_ids(token)[0], token.text or "", token.logprob) for token in details.prefill)
    usage = Usage(prompt_tokens, sum(sequence.generated_tokens for sequence in sequences))
    passed_on = (relayed(request, bytes(body), detailed=True),) if passes_back(dialect, request) else ()
    started = Started(request.model, prompt_tokens, (prompt,) if request.prompt_logprobs else ())
    return (*passed_on, started, *finishes, usage)


def _no_prefill() -> UnsupportedFeature:
    message = (
        "The model's server returns no log-probabilities of the prompt. TGI does if it is started with"
        " --enable-prefill-logprobs."
    )
    return UnsupportedFeature(message, feature="prompt_logprobs")


def _choice(dialect: Dialect, request: Generate, index: int, text: str, sequence: RemoteSequence) -> Finished:
    tokens, reason, stop = _read_tokens(request, sequence), _reason(dialect, sequence), None
    if visible(tokens) != text:  # SentencePiece: the first token starts with a space, the text does not
        tokens = []
    if dialect.answers.include_stop and reason is FinishReason.STOP_STRING:
        # TGI does not say which one matched: the longest at the end of the text.
        stop = max((stop for stop in request.stopping.stop if text.endswith(stop)), key=len, default=None)
        if stop is not None and not request.stopping.include_stop:
            text = text.removesuffix(stop)
            tokens = cut(tokens, len(text))
    return Finished(
        choice=index,
        text=text,
        tokens=tuple(tokens),
        reason=reason,
        generated=sequence.generated_tokens,
        stop=stop,
        seed=sequence.seed,
    )


def _read_tokens(request: Generate, sequence: RemoteSequence) -> list[Token]:
    if any(token.text is None for token in sequence.tokens):
        return []  # MindIE sends ids only, and a token of the IR has a text
    tops = sequence.top_tokens if request.top_logprobs else None
    return [
        Token(
            _ids(token)[0],
            token.text or "",
            token.logprob,
            bool(token.special),
            _top(tops[at]) if tops is not None and at < len(tops) else (),
        )
        for at, token in enumerate(sequence.tokens)
    ]


def _ids(token: RemoteToken) -> tuple[int, ...]:
    if isinstance(token.id, int):
        return (token.id,)
    if not token.id:
        raise malformed("a token without an id")
    return token.id


def _top(tokens: tuple[RemoteToken, ...] | None) -> tuple[TopToken, ...]:
    return tuple(
        TopToken(_ids(token)[0], token.text or "", token.logprob) for token in tokens or () if token.logprob is not None
    )


def _reason(dialect: Dialect, details: RemoteSequence) -> FinishReason:
    reason = dialect.remote.reasons.get(details.finish_reason)
    if reason is None:
        # MindIE's "stop_sequence": cancelled or failed.
        raise BackendFailed("The backend gave up on the answer.", fault=Fault.MALFORMED)
    return FinishReason(reason)


def _prompt_tokens(details: RemoteSequence) -> int:
    """The prompt's token count; TGI 0.9 does not send it, so 0 if the answer does not have the prompt's tokens."""
    return details.input_length or details.prompt_tokens or len(details.prefill)


def passes_back(dialect: Dialect, request: Generate) -> bool:
    """Whether the remote's answer to `request` can be forwarded."""
    origin = request.origin
    return origin is not None and (origin.protocol, origin.dialect) == ("tgi", dialect.name) and not request.echo


def relayed(request: Generate, data: bytes, *, detailed: bool) -> Relayed:
    """An answer, or a frame of one, as the client requested it; `detailed`: whether it has details."""
    # The bytes as they came: nothing to decode.
    if not detailed or request.stream_usage:
        return Relayed(data)
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    fields.pop("details")
    return Relayed(msgspec.json.encode(fields))
