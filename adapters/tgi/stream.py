"""Streamed answers: one frame per token; the last one ends the stream.

The last frame has the whole text and the details, so it is written at `Usage`: without that event there is no clean
end.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from adapters.base import Headers, token_id_headers
from adapters.formats.sse import guard
from adapters.optional import RunWriter
from adapters.tgi.dialects import Dialect
from adapters.tgi.encode import compute_headers, effective_seed, finish_reason, prompt_text, wire_token, wire_top
from adapters.tgi.failures import STREAM_HEADERS, STREAM_TYPE, failure_frame
from schemas.errors import GatewayError
from schemas.ir import Delta, Events, Finished, Generate, Relayed, Started, Token, Usage
from schemas.tgi import StreamDetails, StreamResponse

_json = msgspec.json.Encoder().encode
# The last frame must have a token, also of an answer without any.
_NO_TOKEN = Token(None, "", special=True)


class StreamWriter:
    """The encoder of one stream. A stream has one choice, as the protocol refuses `best_of` there."""

    media_type = STREAM_TYPE
    status_waits = False
    abort_after_error = False

    def __init__(self, dialect: Dialect, request: Generate) -> None:
        self.headers: Headers = (*STREAM_HEADERS, *compute_headers(dialect, request))
        self._dialect = dialect
        self._request = request
        self._prefix = dialect.answers.sse_prefix.encode()
        self._index = 0
        self._texts: list[str] = []
        self._finished: Finished | None = None
        self._last = _NO_TOKEN
        self._relaying = False
        self._around: tuple[bytes, ...] = ()  # the bytes of a frame before its index, and before and after its text

    def feed(self, events: Events) -> bytes:
        """The frames of these events."""
        out: list[bytes] = []
        for event in events:
            if isinstance(event, Relayed):
                self._relaying = True
                # Line breaks between JSON tokens would end the event's data.
                out.append(b"%b%b\n\n" % (self._prefix, guard(event.data.replace(b"\n", b""))))
            elif isinstance(event, Started):
                self.headers += token_id_headers(event.token_ids)
            # The relayed frames stand for all other events; `Started` above only sets a header.
            elif self._relaying:
                continue
            elif isinstance(event, Delta):
                tokens = _tokens(event)
                if isinstance(event, Finished):
                    # Held back for the last frame, which needs the usage.
                    *tokens, self._last = tokens or (_NO_TOKEN,)
                    self._finished = event
                out.extend([self._frame(token) for token in tokens])
            elif isinstance(event, Usage) and self._finished is not None:
                out.append(self._last_frame(self._finished, event))
        return b"".join(out)

    def run_writer(self, choice: int) -> RunWriter | None:  # noqa: ARG002 - there is one
        """What writes texts alone, until more is fed; None: these are to be fed."""
        answers = self._dialect.answers
        if self._relaying or answers.full_text:
            return None
        if not self._around:
            frame = _json(StreamResponse(token=wire_token(self._dialect, Token(None, ""))))
            before, after = frame[1:].split(b'""')
            self._around = self._prefix + b"{", before + b'"', b'"' + after + b"\n\n"
        return self._numbered if answers.index else self._unnumbered

    def _numbered(self, texts: list[bytes]) -> bytes:
        first, (begin, before, after) = self._index + 1, self._around
        self._index += len(texts)
        self._texts.append(b"".join(texts).decode())
        frames = [
            b'%b"index":%d,%b%b%b' % (begin, number, before, text, after) for number, text in enumerate(texts, first)
        ]
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _unnumbered(self, texts: list[bytes]) -> bytes:
        begin, before, after = self._around
        self._texts.append(b"".join(texts).decode())
        return begin + before + (after + begin + before).join(texts) + after

    def fail(self, error: GatewayError) -> bytes:
        """The error as a frame, which ends the stream."""
        return failure_frame(self._dialect, error)

    def _frame(self, token: Token) -> bytes:
        return b"%b%b\n\n" % (self._prefix, guard(_json(self._response(token))))

    def _last_frame(self, finished: Finished, usage: Usage) -> bytes:
        response = self._response(self._last)
        text = "".join(self._texts)
        response = msgspec.structs.replace(
            response,
            generated_text=prompt_text(self._request) + text if self._request.echo else text,
            details=self._details(finished, usage) if self._request.stream_usage else None,
        )
        return b"%b%b\n\n" % (self._prefix, guard(_json(response)))

    def _response(self, token: Token) -> StreamResponse:
        self._index += 1
        if not token.special:
            self._texts.append(token.text)
        wire = wire_token(self._dialect, token)
        # Quadratic in the answer's length, as the option is in MindIE.
        if self._dialect.answers.full_text:
            wire = msgspec.structs.replace(wire, text="".join(self._texts))
        return StreamResponse(
            index=self._index if self._dialect.answers.index else UNSET,
            token=wire,
            top_tokens=wire_top(token.top) if token.top and self._request.top_logprobs else UNSET,
        )

    def _details(self, finished: Finished, usage: Usage) -> StreamDetails:
        count = self._dialect.answers.prompt_count
        generated = usage.completion_tokens if finished.generated is None else finished.generated
        return StreamDetails(
            prompt_tokens=usage.prompt_tokens if count == "prompt_tokens" else UNSET,
            finish_reason=finish_reason(self._dialect, self._request, finished.reason, generated),
            generated_tokens=generated,
            seed=effective_seed(self._dialect, self._request, finished.seed),
            input_length=usage.prompt_tokens if count == "input_length" else UNSET,
        )


def _tokens(delta: Delta) -> Sequence[Token]:
    """The delta's tokens. Text without tokens, as of a refusal, becomes one token without an id."""
    text = delta.refusal if delta.tokens else delta.text + delta.refusal
    return (*delta.tokens, Token(None, text)) if text else delta.tokens
