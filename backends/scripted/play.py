"""Plays an answer: acts to the deltas of one choice, step by step as a model would generate them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from backends.choice import ChoiceBuilder
from backends.detokenizer import Detokenizer
from backends.scripted.answer import Act, Answer
from backends.scripted.script import FixedToken
from backends.scripted.tokenizer import EOS, ToyTokenizer
from schemas.ir import Delta, FinishReason, Generate, Token, TopToken


def play(
    answer: Answer, request: Generate, limit: int, index: int, seed: int, tokenizer: ToyTokenizer
) -> Iterator[Delta | None]:
    """One item for each generated token: what it told, None if it was held back. The last is `Finished`."""
    stopping = request.stopping
    builder = ChoiceBuilder(index, stopping, Detokenizer(tokenizer), seed)
    scored = request.logprobs or request.top_logprobs > 0 or request.best_of is not None
    for act in answer.run(endless=stopping.ignore_eos, at_least=stopping.min_new_tokens) if limit else ():
        told = _take(builder, act, request.top_logprobs if scored else None, tokenizer)
        if builder.stopped:
            yield builder.finish(FinishReason.STOP_STRING)
            return
        reason = _reason(act, builder.generated, limit, request)
        if reason is not None:
            if told is not None:
                yield replace(told, choice=index)
            yield builder.finish(reason)
            return
        yield builder.delta() if told is None else replace(told, choice=index)
    yield builder.finish(answer.reason if limit else FinishReason.LENGTH)


def scored_token(id: int, position: int, top: int, tokenizer: ToyTokenizer) -> tuple[float, tuple[TopToken, ...]]:
    """A made-up log-probability, always the same for a token at a position, and those of the `top` likeliest there."""
    logprob = -((id * 37 + position * 11) % 200) / 128
    others = ((id + place) % tokenizer.size for place in range(top))
    return logprob, tuple(_top(other, logprob - place / 2, tokenizer) for place, other in enumerate(others))


def _take(builder: ChoiceBuilder, act: Act, top: int | None, tokenizer: ToyTokenizer) -> Delta | None:
    """Generate one token; the delta it is, if it is no part of the text."""
    if isinstance(act, Delta):
        builder.generated += 1
        return act
    if isinstance(act, FixedToken):
        builder.add_token(Token(act.id, act.text, act.logprob, act.special))
    elif top is None:
        builder.add(act)
    else:
        builder.add(act, *scored_token(act, builder.generated, top, tokenizer))
    return None


def _reason(act: Act, generated: int, limit: int, request: Generate) -> FinishReason | None:
    id = act if isinstance(act, int) else act.id if isinstance(act, FixedToken) else None
    if generated > request.stopping.min_new_tokens:
        if act == EOS:
            return FinishReason.EOS
        if id in request.stopping.stop_token_ids:
            return FinishReason.STOP_TOKEN
    return FinishReason.LENGTH if generated >= limit else None


def _top(id: int, logprob: float, tokenizer: ToyTokenizer) -> TopToken:
    entry = tokenizer.piece(id)
    return TopToken(id, entry.text, logprob, None if entry.whole else entry.bytes)
