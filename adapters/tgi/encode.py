"""Non-streamed answers: a completion to the JSON of `/generate`, or on `/` to a list of one."""

from __future__ import annotations

import math

import msgspec
from msgspec import UNSET, UnsetType

from adapters.base import Headers, Reply, token_id_headers
from adapters.fold import visible_text
from adapters.tgi.dialects import Dialect
from schemas.completion import Choice, Completion, Timings
from schemas.ir import ChatPrompt, FinishReason, Generate, TextPart, TextPrompt, Tokenize, Tokens, TopToken
from schemas.ir import Token as IRToken
from schemas.tgi import (
    BestOfSequence,
    ChatTokens,
    Details,
    GenerateResponse,
    MindieDetails,
    MindieResponse,
    MindieToken,
    PrefillToken,
    SimpleToken,
    Token,
    VertexResponse,
)

_json = msgspec.json.Encoder().encode


def encode_answer(dialect: Dialect, request: Generate, answer: Completion) -> Reply:
    """The complete answer to `request`."""
    if request.origin is not None and request.origin.operation == "vertex":
        return Reply(_json(VertexResponse(tuple(visible_text(choice) for choice in answer.choices))))
    # `n` is TGI's `best_of`: all candidates were generated, and the best one is the answer.
    best, *others = _best_first(answer.choices)
    body: msgspec.Raw | GenerateResponse | MindieResponse
    if answer.relayed is not None:
        body = msgspec.Raw(answer.relayed)
    elif dialect.answers.ids_only:
        body = _mindie_response(dialect, request, answer, best)
    else:
        body = _response(dialect, request, answer, best, others)
    compat = request.origin is not None and request.origin.operation == "compat"
    return Reply(_json([body] if compat else body), headers=_headers(dialect, request, answer, best))


def encode_tokens(request: Tokenize, answer: Tokens) -> Reply:
    """The answer of `/tokenize` or `/chat_tokenize`. TGI's `start` and `stop` count bytes, the IR's characters."""
    # In ASCII a character is a byte: a range costs no memory.
    offsets = range(len(answer.text) + 1) if answer.text.isascii() else _byte_offsets(answer.text)
    spans = answer.spans
    tokens = tuple([SimpleToken(span.id, span.text, offsets[span.start], offsets[span.stop]) for span in spans])
    of_chat = request.origin is not None and request.origin.operation == "chat_tokenize"
    return Reply(_json(ChatTokens(tokens, answer.text) if of_chat else tokens))


def wire_token(dialect: Dialect, token: IRToken) -> Token:
    """One token. An unknown id is 0, which both of TGI's Python clients accept."""
    if dialect.answers.scores:
        return Token(token.id or 0, token.text, token.logprob, token.special)
    # MindIE: no log-probability, `special` null, and no text for special tokens.
    return Token(token.id or 0, "" if token.special else token.text, None, None)


def wire_top(top: tuple[TopToken, ...]) -> tuple[Token, ...]:
    """The most likely tokens of a position."""
    return tuple(Token(token.id or 0, token.text, token.logprob, False) for token in top)


def effective_seed(dialect: Dialect, request: Generate, seed: int | None) -> int | None:
    """The seed of the answer, by default the request's. TGI reports it for sampled answers only, MindIE for all."""
    if request.sampling.greedy and not dialect.defaults.always_seeded:
        return None
    return seed if seed is not None else request.sampling.seed


def finish_reason(dialect: Dialect, request: Generate, reason: FinishReason, generated: int) -> str:
    """The dialect's word for the reason. TGI compares the length before it looks for an end (`StoppingCriteria`)."""
    if dialect.answers.length_first and generated == request.stopping.max_new_tokens:
        reason = FinishReason.LENGTH
    return dialect.wording.finish[reason]


def prompt_text(request: Generate) -> str:
    """The text that `return_full_text` puts before the answer: the client's own, not the rendered template."""
    prompt = request.prompts[0]
    if isinstance(prompt, TextPrompt):
        return prompt.text
    if not isinstance(prompt, ChatPrompt):
        return ""
    texts = (message.content for message in prompt.messages)
    return "".join(
        content
        if isinstance(content, str)
        else "".join(part.text for part in content or () if isinstance(part, TextPart))
        for content in texts
    )


def _best_first(choices: tuple[Choice, ...]) -> list[Choice]:
    """The choices with the best one first, which has the highest mean log-probability (TGI's "best of")."""
    best = max(choices, key=_mean_logprob) if len(choices) > 1 else choices[0]
    return [best, *(choice for choice in choices if choice is not best)]


def _mean_logprob(choice: Choice) -> float:
    logprobs = [token.logprob for token in choice.tokens if token.logprob is not None]
    # The mean, not the sum, which would prefer short answers.
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf


def _generated_text(request: Generate, choice: Choice) -> str:
    return prompt_text(request) + visible_text(choice) if request.echo else visible_text(choice)


def _generated_tokens(answer: Completion, choice: Choice) -> int:
    if choice.generated is not None:
        return choice.generated
    # The usage counts all choices together.
    return answer.usage.completion_tokens if len(answer.choices) == 1 else len(choice.tokens)


def _response(
    dialect: Dialect, request: Generate, answer: Completion, best: Choice, others: list[Choice]
) -> GenerateResponse:
    text = _generated_text(request, best)
    if not request.stream_usage:
        return GenerateResponse(text)
    first, *rest = (_sequence(dialect, request, answer, choice) for choice in (best, *others))
    details = Details(
        finish_reason=first.finish_reason,
        generated_tokens=first.generated_tokens,
        seed=first.seed,
        prefill=first.prefill,
        tokens=first.tokens,
        best_of_sequences=tuple(rest) if rest else UNSET,
        top_tokens=first.top_tokens,
    )
    return GenerateResponse(text, details)


def _sequence(dialect: Dialect, request: Generate, answer: Completion, choice: Choice) -> BestOfSequence:
    return BestOfSequence(
        generated_text=_generated_text(request, choice),
        finish_reason=finish_reason(dialect, request, choice.reason, _generated_tokens(answer, choice)),
        generated_tokens=_generated_tokens(answer, choice),
        seed=effective_seed(dialect, request, choice.seed),
        prefill=tuple(PrefillToken(token.id or 0, token.text, token.logprob) for token in _prefill(request, answer)),
        tokens=tuple(wire_token(dialect, token) for token in choice.tokens),
        top_tokens=_top_tokens(request, choice),
    )


def _top_tokens(request: Generate, choice: Choice) -> tuple[tuple[Token, ...], ...] | UnsetType:
    return tuple(wire_top(token.top) for token in choice.tokens) if request.top_logprobs and choice.tokens else UNSET


def _prefill(request: Generate, answer: Completion) -> tuple[IRToken, ...]:
    return answer.prompts[0] if request.prompt_logprobs and answer.prompts else ()


def _mindie_response(dialect: Dialect, request: Generate, answer: Completion, best: Choice) -> MindieResponse:
    text = _generated_text(request, best)
    if not request.stream_usage:
        return MindieResponse(generated_text=text)
    details = MindieDetails(
        prompt_tokens=answer.usage.prompt_tokens,
        finish_reason=finish_reason(dialect, request, best.reason, _generated_tokens(answer, best)),
        generated_tokens=_generated_tokens(answer, best),
        prefill=tuple(MindieToken(token.id or 0) for token in _prefill(request, answer)),
        seed=effective_seed(dialect, request, best.seed),
        tokens=tuple(MindieToken(token.id or 0) for token in best.tokens),
    )
    return MindieResponse(details=details, generated_text=text)


def compute_headers(dialect: Dialect, request: Generate) -> Headers:
    """The headers that do not depend on the answer."""
    if not dialect.answers.compute_type:
        return ()
    return (
        ("x-compute-type", dialect.answers.compute_type),
        ("x-compute-characters", str(len(prompt_text(request)))),
    )


def _headers(dialect: Dialect, request: Generate, answer: Completion, best: Choice) -> Headers:
    generated = _generated_tokens(answer, best)
    headers = compute_headers(dialect, request)
    # Without details the answer has no token ids to explain.
    if request.stream_usage and (best.tokens or answer.prompts):
        headers += token_id_headers(answer.token_ids)
    if dialect.answers.timing_headers and answer.timings is not None:
        headers += _timing_headers(dialect, answer.timings, generated)
    if dialect.answers.token_headers:
        headers += (
            ("x-prompt-tokens", str(answer.usage.prompt_tokens)),
            ("x-generated-tokens", str(generated)),
        )
    return headers


def _timing_headers(dialect: Dialect, timings: Timings, generated: int) -> Headers:
    """Times in milliseconds; x-compute-time of TGI 3 in seconds. Queueing is unknown and counts as inference."""
    total = str(int(timings.total * 1000))
    return (
        ("x-compute-time", str(timings.total) if dialect.answers.compute_seconds else total),
        ("x-total-time", total),
        ("x-validation-time", "0"),
        ("x-queue-time", "0"),
        ("x-inference-time", total),
        ("x-time-per-token", str(int(timings.total * 1000 / max(1, generated)))),
    )


def _byte_offsets(text: str) -> list[int]:
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + len(character.encode()))
    return offsets
