"""Hypothesis strategies for the laws of all protocols: event streams, their batches, and splits of bytes.

The mirror law: the client codec of a protocol decodes what the server codec encodes to the same events, up to
`canonical` and as far as the protocol can express them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.completion import Completion
from schemas.ir import (
    ChatPrompt,
    Delta,
    Event,
    Events,
    Finished,
    FinishReason,
    Generate,
    Message,
    Started,
    Stopping,
    Token,
    ToolDelta,
    TopToken,
    Usage,
)

texts = st.text(
    st.sampled_from("ab Z09.,:{}[]<>/\\\"'\n\r\t\x0b\x0c\x1f\x7f\x85\u2028\u2029\ufeff\ufffdéß漢字🙂👩\u200d"),
    max_size=12,
)
"""Texts that break naive framing: line ends of all kinds, quotes, control and astral characters."""

logprobs = st.floats(min_value=-1e4, max_value=0.0, allow_nan=False)


def asked(**fields: object) -> Generate:
    """A chat of one message, with further fields."""
    fields = {"id": "r1", "model": "m", "prompts": (ChatPrompt((Message("user", "x"),)),)} | fields
    return Generate(**fields)  # type: ignore[arg-type]


def canonical(events: Events) -> Completion:
    """The answer of a stream, for any deltas and batches, without the order of its blocks, which few protocols have."""
    answer = fold(events)
    choices = tuple(msgspec.structs.replace(choice, order=()) for choice in answer.choices)
    return msgspec.structs.replace(answer, choices=choices, relayed=None)


def effective(stopping: Stopping) -> Stopping:
    """Without `include_stop` if there is no stop sequence, where it has no effect."""
    return msgspec.structs.replace(stopping, include_stop=stopping.shows_stop)


@st.composite
def tokens(draw: st.DrawFn, *, ids: bool = True, with_logprobs: bool = False, tops: int = 0) -> Token:
    """An ordinary (not special) token."""
    text = draw(texts)
    top = (
        tuple(
            TopToken(draw(st.integers(0, 1 << 20)) if ids else None, draw(texts), draw(logprobs)) for _ in range(tops)
        )
        if tops
        else ()
    )
    return Token(
        id=draw(st.integers(0, 1 << 20)) if ids else None,
        text=text,
        logprob=draw(logprobs) if with_logprobs else None,
        top=top,
    )


@st.composite
def streams(
    draw: st.DrawFn,
    *,
    choices: int = 1,
    with_tokens: bool = True,
    ids: bool = True,
    with_logprobs: bool = False,
    tops: int = 0,
    tools: bool = False,
    reasoning: bool = False,
    refusals: bool = False,
    reasons: Sequence[FinishReason] = (FinishReason.EOS, FinishReason.LENGTH, FinishReason.STOP_STRING),
    model: str = "model",
    end_token: bool = False,
) -> Events:
    """A complete stream, choices interleaved.

    Args:
        draw: hypothesis' own.
        choices: the maximum number of choices.
        with_tokens: whether deltas carry their tokens.
        ids: whether tokens carry ids.
        with_logprobs: whether tokens carry log-probabilities.
        tops: most likely tokens per position.
        tools: whether choices call tools.
        reasoning: whether choices have reasoning.
        refusals: whether choices refuse, without tokens.
        reasons: finish reasons to draw from.
        model: the served model's name.
        end_token: whether an EOS finish carries the special end token.
    """
    count = draw(st.integers(1, choices))
    open_choices = list(range(count))
    events: list[Event] = []
    generated = dict.fromkeys(open_choices, 0)
    calls = dict.fromkeys(open_choices, 0)
    for _ in range(draw(st.integers(0, 6 * count))):
        index = draw(st.sampled_from(open_choices))
        if tools and draw(st.booleans()):
            events.append(Delta(choice=index, tool_calls=(_tool_delta(draw, calls, index),)))
        elif reasoning and not generated[index] and draw(st.booleans()):
            events.append(Delta(choice=index, reasoning=draw(texts.filter(bool))))
        elif refusals and draw(st.booleans()):
            events.append(Delta(choice=index, refusal=draw(texts.filter(bool))))
        else:
            piece = draw(tokens(ids=ids, with_logprobs=with_logprobs, tops=tops))
            events.append(Delta(choice=index, text=piece.text, tokens=(piece,) if with_tokens else ()))
            generated[index] += 1
    for index in draw(st.permutations(open_choices)):
        reason = draw(st.sampled_from(reasons))
        end = end_token and with_tokens and reason is FinishReason.EOS
        generated[index] += end
        events.append(
            Finished(
                choice=index,
                reason=reason,
                tokens=(Token(2, "</s>", -0.5 if with_logprobs else None, special=True),) if end else (),
                generated=generated[index],
            )
        )
    prompt = draw(st.integers(0, 1000))
    usage = Usage(prompt, sum(generated.values()))
    return (Started(model, prompt), *events, usage)


def _tool_delta(draw: st.DrawFn, calls: dict[int, int], choice: int) -> ToolDelta:
    if not calls[choice] or draw(st.booleans()):
        calls[choice] += 1
        index = calls[choice] - 1
        return ToolDelta(index, f"call_{choice}_{index}", draw(st.sampled_from(["f", "get_weather"])), "")
    return ToolDelta(calls[choice] - 1, arguments=draw(texts))


@st.composite
def batches(draw: st.DrawFn, events: Events) -> list[Events]:
    """The same events, cut into batches anywhere."""
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(events) - 1)), max_size=len(events))))
    edges = [0, *[cut for cut in cuts if cut < len(events)], len(events)]
    return [events[a:b] for a, b in pairwise(edges)]


@st.composite
def splits(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes, cut anywhere, inside characters too."""
    if len(data) < 2:
        return [data]
    cuts = sorted(draw(st.sets(st.integers(1, len(data) - 1), max_size=20)))
    edges = [0, *cuts, len(data)]
    return [data[a:b] for a, b in pairwise(edges)]
