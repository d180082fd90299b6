"""The fold of an event stream to a complete answer, so that streamed and non-streamed answers cannot differ.

`unfold` is the inverse, for remotes that do not stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from schemas.completion import Choice, Completion
from schemas.errors import Incomplete
from schemas.ir import Delta, Events, Finished, Started, ToolCall, ToolDelta, Usage

Kind = Literal["reasoning", "text", "refusal"]
"""The kinds of text in an answer."""

Order = tuple[tuple[Kind | Literal["calls"], int], ...]

NO_ARGUMENTS = "{}"
"""The arguments of a call that has none: clients parse them as JSON, and some remotes send nothing."""

_TEXTS: tuple[Kind, ...] = ("reasoning", "text", "refusal")
# Strategy: `Fold` only collects deltas; all joins happen once, at the end, because repeated concatenation of a long
# answer would be quadratic. The order of the blocks is computed only for choices with two kinds of content or more.
_USUAL = (*_TEXTS, "calls")


class Fold:
    """Collects events. `completion` is the answer once the stream is complete (`done`)."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._choices: dict[int, list[Delta]] = {}
        self._usage: Usage | None = None
        self._relayed: bytes | None = None

    @property
    def done(self) -> bool:
        """Whether `Usage`, the last event, was seen."""
        return self._usage is not None

    def feed(self, events: Events) -> None:
        """Collect a batch of events."""
        for event in events:
            if isinstance(event, Delta):
                self._choices.setdefault(event.choice, []).append(event)
            elif isinstance(event, Started):
                self._started = event
            elif isinstance(event, Usage):
                self._usage = event
            else:
                # The last kind of event left is `Relayed`. The events decoded from it follow, with the tokens.
                self._relayed = event.data

    def completion(self) -> Completion:
        """The complete answer.

        Raises:
            schemas.errors.Incomplete: the stream stopped before its end.
        """
        started = self._started
        if started is None or self._usage is None:
            raise Incomplete("The backend's answer stopped before it was finished.")
        choices = tuple([_choice(index, self._choices[index]) for index in sorted(self._choices)])
        return Completion(
            started.model, choices, self._usage, started.prompts, relayed=self._relayed, token_ids=started.token_ids
        )


def _choice(index: int, deltas: list[Delta]) -> Choice:
    """Join the deltas of a choice. A single delta is complete as it is, and in the usual order."""
    end = deltas[-1]
    # The grammar of `schemas.ir` has one `Finished` for each choice, after all of its deltas.
    if not isinstance(end, Finished):
        raise Incomplete("The backend's answer stopped before it was finished.")
    order: Order = ()
    # Remotes that do not stream send one delta for each choice: nothing to join, and no other order than the usual.
    if len(deltas) > 1:
        end = _merged(deltas, end)
        order = _order(deltas, end)
    return Choice(
        index,
        end.reason,
        end.text,
        end.tokens,
        end.reasoning,
        end.refusal,
        join_calls(end.tool_calls) if end.tool_calls else (),
        end.generated,
        end.stop,
        end.seed,
        end.ids,
        order,
    )


def _merged(deltas: list[Delta], end: Finished) -> Finished:
    """One delta with the content of all deltas of a choice."""
    # A list comprehension, not a generator: `str.join` would build a list from it anyway.
    text = "".join([delta.text for delta in deltas])
    richer = [each for each in deltas if each.tokens or each.reasoning or each.refusal or each.tool_calls or each.ids]
    if not richer:
        return msgspec.structs.replace(end, text=text)
    return msgspec.structs.replace(
        end,
        text=text,
        tokens=tuple([token for delta in richer for token in delta.tokens]),
        reasoning="".join([delta.reasoning for delta in richer]),
        refusal="".join([delta.refusal for delta in richer]),
        tool_calls=tuple([piece for delta in richer for piece in delta.tool_calls]),
        ids=tuple([id for delta in richer for id in delta.ids]),
    )


def join_calls(pieces: tuple[ToolDelta, ...]) -> tuple[ToolCall, ...]:
    """The complete tool calls, ordered by index."""
    calls: dict[int, list[ToolDelta]] = {}
    for piece in pieces:
        calls.setdefault(piece.index, []).append(piece)
    return tuple(_call(calls[index]) for index in sorted(calls))


def _call(pieces: list[ToolDelta]) -> ToolCall:
    """Join the pieces of a call: the last id and name that are not empty, and all arguments (`NO_ARGUMENTS`: none)."""
    id = name = ""
    signature = None
    for piece in pieces:
        id, name, signature = piece.id or id, piece.name or name, piece.signature or signature
    return ToolCall(id, name, "".join([piece.arguments for piece in pieces]) or NO_ARGUMENTS, signature)


def _order(deltas: list[Delta], whole: Finished) -> Order:
    """The runs of each kind of text, in characters, and the place of the first tool call, where all calls go."""
    # One kind of content has one order.
    if bool(whole.text) + bool(whole.reasoning) + bool(whole.refusal) + bool(whole.tool_calls) < 2:
        return ()
    order: list[tuple[Kind | Literal["calls"], int]] = []
    for delta in deltas:
        for kind in _TEXTS:
            if text := getattr(delta, kind):
                # Adjacent runs of a kind are one block: a block per delta would be a block per token.
                before = order.pop()[1] if order and order[-1][0] == kind else 0
                order.append((kind, before + len(text)))
        if delta.tool_calls and ("calls", 0) not in order:
            order.append(("calls", 0))
    kinds = [kind for kind, _ in order]
    # The usual order is not stored: equal answers must compare equal whether they were streamed or not. A kind that
    # occurs twice makes the lists differ.
    return () if kinds == [kind for kind in _USUAL if kind in kinds] else tuple(order)


def blocks(choice: Choice) -> Iterator[tuple[Kind, str] | ToolCall]:
    """The blocks of an answer in their order; text after the first tool call comes after all tool calls."""
    texts: dict[Kind, str] = {"reasoning": choice.reasoning, "text": choice.text, "refusal": choice.refusal}
    usual: Order = (*((kind, len(text)) for kind, text in texts.items() if text), ("calls", 0))
    # `order` has lengths, not texts: each block takes the next characters of its kind's text.
    for kind, size in choice.order or usual:
        if kind == "calls":
            yield from choice.tool_calls
        else:
            yield kind, texts[kind][:size]
            texts[kind] = texts[kind][size:]


def visible_text(choice: Choice) -> str:
    """Text and refusal in their order, without reasoning, for protocols that have no field for refusals."""
    if not choice.refusal:
        return choice.text
    return "".join(block[1] for block in blocks(choice) if not isinstance(block, ToolCall) and block[0] != "reasoning")


def fold(events: Events) -> Completion:
    """The complete answer of a complete stream of events.

    Raises:
        schemas.errors.Incomplete: the stream stopped before its end.
    """
    collected = Fold()
    collected.feed(events)
    return collected.completion()


def unfold(answer: Completion) -> Events:
    """The shortest stream of events that folds to `answer`, in the usual order."""
    finishes = tuple(
        Finished(
            choice=choice.index,
            text=choice.text,
            tokens=choice.tokens,
            reasoning=choice.reasoning,
            refusal=choice.refusal,
            tool_calls=tuple(
                ToolDelta(index, call.id, call.name, call.arguments, call.signature)
                for index, call in enumerate(choice.tool_calls)
            ),
            reason=choice.reason,
            generated=choice.generated,
            stop=choice.stop,
            seed=choice.seed,
            ids=choice.ids,
        )
        for choice in answer.choices
    )
    started = Started(answer.model, answer.usage.prompt_tokens, answer.prompts, answer.token_ids)
    return (started, *finishes, answer.usage)
