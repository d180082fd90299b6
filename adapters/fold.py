"""The fold: an event stream to a whole answer, so that streamed and whole answers cannot disagree.

And its inverse `unfold`, for remotes that answered whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from schemas.errors import Incomplete
from schemas.ir import (
    Choice,
    Completion,
    Delta,
    Events,
    Finished,
    Started,
    Token,
    ToolCall,
    ToolDelta,
    Usage,
)

Kind = Literal["reasoning", "text", "refusal"]
"""What a block of text is."""

Order = tuple[tuple[Kind | Literal["calls"], int], ...]

_USUAL = ("reasoning", "text", "refusal", "calls")


@dataclass(slots=True, eq=False)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Choice:
    texts: dict[Kind, list[str]] = field(default_factory=lambda: {"reasoning": [], "text": [], "refusal": []})
    tokens: list[Token] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    before: list[tuple[Kind, int]] = field(default_factory=list)  # the calls
    after: list[tuple[Kind, int]] = field(default_factory=list)
    finished: Finished | None = None

    def say(self, kind: Kind, text: str) -> None:
        """Add a piece of text to the block that it goes on with, or to a new one."""
        self.texts[kind].append(text)
        said = self.after if self.calls else self.before
        if said and said[-1][0] == kind:
            said[-1] = (kind, said[-1][1] + len(text))
        else:
            said.append((kind, len(text)))


class Fold:
    """Collects events; `done` once the stream is complete, `completion` then is the whole answer."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._choices: dict[int, _Choice] = {}
        self._usage: Usage | None = None
        self._relayed: bytes | None = None

    @property
    def done(self) -> bool:
        """Whether `Usage`, the last event, was seen."""
        return self._usage is not None

    def feed(self, events: Events) -> None:
        """Take in a batch of events."""
        for event in events:
            if isinstance(event, Delta):
                self._delta(event)
            elif isinstance(event, Started):
                self._started = event
            elif isinstance(event, Usage):
                self._usage = event
            else:
                self._relayed = event.data

    def completion(self) -> Completion:
        """The whole answer.

        Raises:
            schemas.errors.Incomplete: the stream stopped before its end.
        """
        if self._started is None or self._usage is None:
            raise Incomplete("The backend's answer stopped before it was finished.")
        choices = tuple(_whole(index, self._choices[index]) for index in sorted(self._choices))
        begun = self._started
        return Completion(
            begun.model, choices, self._usage, begun.prompts, relayed=self._relayed, token_ids=begun.token_ids
        )

    def _delta(self, delta: Delta) -> None:
        choice = self._choices.get(delta.choice)
        if choice is None:
            choice = self._choices[delta.choice] = _Choice()
        choice.tokens.extend(delta.tokens)
        if delta.reasoning:
            choice.say("reasoning", delta.reasoning)
        if delta.text:
            choice.say("text", delta.text)
        if delta.refusal:
            choice.say("refusal", delta.refusal)
        for piece in delta.tool_calls:
            call = choice.calls.setdefault(piece.index, _Call())
            call.id = piece.id or call.id
            call.name = piece.name or call.name
            call.arguments.append(piece.arguments)
        if isinstance(delta, Finished):
            choice.finished = delta


def _whole(index: int, choice: _Choice) -> Choice:
    end = choice.finished
    if end is None:
        raise Incomplete("The backend's answer stopped before it was finished.")
    return Choice(
        index=index,
        reason=end.reason,
        text="".join(choice.texts["text"]),
        tokens=tuple(choice.tokens),
        reasoning="".join(choice.texts["reasoning"]),
        refusal="".join(choice.texts["refusal"]),
        tool_calls=tuple(
            ToolCall(call.id, call.name, "".join(call.arguments)) for _, call in sorted(choice.calls.items())
        ),
        generated=end.generated,
        stop=end.stop,
        seed=end.seed,
        order=_order(choice),
    )


def _order(choice: _Choice) -> Order:
    calls: Order = (("calls", 0),) if choice.calls else ()
    order = (*choice.before, *calls, *choice.after)
    kinds = [kind for kind, _ in order]
    return () if kinds == [kind for kind in _USUAL if kind in kinds] else order


def blocks(choice: Choice) -> Iterator[tuple[Kind, str] | ToolCall]:
    """An answer in the order in which it was given; what came after the first call comes after all of them."""
    texts: dict[Kind, str] = {"reasoning": choice.reasoning, "text": choice.text, "refusal": choice.refusal}
    usual: Order = (*((kind, len(text)) for kind, text in texts.items() if text), ("calls", 0))
    for kind, size in choice.order or usual:
        if kind == "calls":
            yield from choice.tool_calls
        else:
            yield kind, texts[kind][:size]
            texts[kind] = texts[kind][size:]


def visible_text(choice: Choice) -> str:
    """What was said, in its order. A refusal is text, for a protocol with no word for refusals; thoughts are not."""
    if not choice.refusal:
        return choice.text
    return "".join(block[1] for block in blocks(choice) if not isinstance(block, ToolCall) and block[0] != "reasoning")


def fold(events: Events) -> Completion:
    """The whole answer that a complete stream of events says.

    Raises:
        schemas.errors.Incomplete: the stream stopped before its end.
    """
    collected = Fold()
    collected.feed(events)
    return collected.completion()


def unfold(answer: Completion) -> Events:
    """The shortest stream that folds to `answer`, in the usual order."""
    finishes = tuple(
        Finished(
            choice=choice.index,
            text=choice.text,
            tokens=choice.tokens,
            reasoning=choice.reasoning,
            refusal=choice.refusal,
            tool_calls=tuple(
                ToolDelta(index, call.id, call.name, call.arguments) for index, call in enumerate(choice.tool_calls)
            ),
            reason=choice.reason,
            generated=choice.generated,
            stop=choice.stop,
            seed=choice.seed,
        )
        for choice in answer.choices
    )
    started = Started(answer.model, answer.usage.prompt_tokens, answer.prompts, answer.token_ids)
    return (started, *finishes, answer.usage)
