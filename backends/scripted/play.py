"""Plays an answer: turns the steps of one choice into deltas, one token at a time as a model would generate them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from backends.detokenization.choice import ChoiceBuilder
from backends.detokenization.detokenizer import Detokenizer
from backends.scripted.answer import Answer, Step
from backends.scripted.script import FixedToken
from backends.scripted.tokenizer import EOS, ToyTokenizer
from schemas.ir import Delta, FinishReason, Generate, Token, TopToken


def play(
    answer: Answer, request: Generate, limit: int, index: int, seed: int, tokenizer: ToyTokenizer
) -> Iterator[Delta | None]:
    """One item per generated token: its delta, or None if the token is held back. The last item is `Finished`."""
    stopping = request.stopping
    builder = ChoiceBuilder(index, stopping, Detokenizer(tokenizer), seed)
    # `best_of` ranks by log-probabilities, whether or not the client asked for them.
    scored = request.logprobs or request.top_logprobs > 0 or request.best_of is not None
    # With a limit of 0 only the prompt is scored, and no step is played.
    for step in answer.run(endless=stopping.ignore_eos, at_least=stopping.min_new_tokens) if limit else ():
        extra = _generate(builder, step, request.top_logprobs if scored else None, tokenizer)
        # Before `_reason`: a stop string has priority over an end token or the limit at the same step.
        if builder.stopped:
            yield builder.finish(FinishReason.STOP_STRING)
            return
        reason = _reason(step, builder.generated, limit, request)
        if reason is not None:
            if extra is not None:
                # A step that is no text has a delta of its own, which goes before `Finished`.
                yield replace(extra, choice=index)
            yield builder.finish(reason)
            return
        yield builder.delta() if extra is None else replace(extra, choice=index)
    yield builder.finish(answer.reason if limit else FinishReason.LENGTH)


def scored_token(id: int, position: int, top: int, tokenizer: ToyTokenizer) -> tuple[float, tuple[TopToken, ...]]:
    """A made-up log-probability, and `top` alternatives with theirs. Both depend on `id` and `position` only."""
    # Divided by a power of two: the values are exact in binary, so they print and sum alike everywhere.
    logprob = -((id * 37 + position * 11) % 200) / 128
    others = ((id + place) % tokenizer.size for place in range(top))
    return logprob, tuple(_top(other, logprob - place / 2, tokenizer) for place, other in enumerate(others))


def _generate(builder: ChoiceBuilder, step: Step, top: int | None, tokenizer: ToyTokenizer) -> Delta | None:
    """Add one token to the choice; a step that is not text is returned as a delta of its own."""
    # The builder counts the step without seeing it: reasoning and tool calls count towards the limit and the usage.
    if isinstance(step, Delta):
        builder.generated += 1
        return step
    if isinstance(step, FixedToken):
        builder.add_token(Token(step.id, step.text, step.logprob, step.special))
    elif top is None:
        builder.add(step)
    else:
        builder.add(step, *scored_token(step, builder.generated, top, tokenizer))
    return None


def _reason(step: Step, generated: int, limit: int, request: Generate) -> FinishReason | None:
    id = step if isinstance(step, int) else step.id if isinstance(step, FixedToken) else None
    if generated > request.stopping.min_new_tokens:
        if step == EOS:  # below the minimum an end token ends nothing
            return FinishReason.EOS
        if id in request.stopping.stop_token_ids:
            return FinishReason.STOP_TOKEN
    return FinishReason.LENGTH if generated >= limit else None


def _top(id: int, logprob: float, tokenizer: ToyTokenizer) -> TopToken:
    entry = tokenizer.piece(id)
    return TopToken(id, entry.text, logprob, None if entry.whole else entry.bytes)
