"""Speculation: how many draft tokens a step verifies for each sequence, so that it pays.

Strategy: the noise of sampling is a function of (seed, position, token), so a draft is right exactly when it would have
been drawn. A step runs a sequence's last token and its drafts together, chooses a token after each of them, and keeps
the choices up to the first that differs from its draft: the text is that of single steps (`sampling.sampler`).

Drafts come from the sequence's own text (`lookup`), from a source of drafts, which is a smaller model
(`engine.draft_model`) or the model's own MTP layer (`engine.mtp_drafts`), or from its grammar, where that leaves no
choice (`sampling.grammar_drafts`). The latter are always right. One of the others is verified if it pays: each draft
adds a row to the step, and one of a source a forward pass of that; it pays if the chance that it is right is greater
than what it costs, in tokens:

    chance > seconds of a draft * tokens of the step / seconds of the step.

With one sequence a row costs little, since a decode step is bound by reading weights; with many sequences few drafts
pay. Both sides are measured while serving: `StepCosts` and `Rate`. Rates of the text's own drafts are kept by the
length of the match that a draft follows, which grows by a token with each right draft before it: after a long match
the next token is likelier right than after a short one. A sequence is given the drafts that are likelier right, those
of its own text or those of the source. Imports no torch.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from backends.native.engine.scheduling.lookup import LONGEST_MATCH, REALIGNED, Lookup
from backends.native.engine.scheduling.scheduler import MOST_ROWS
from backends.native.engine.scheduling.sequence import Sequence, Work

_MEMORY = 0.98  # how much an observation counts after the next one
_SOURCE_MEMORY = 0.99  # likewise of a trial of a source by any sequence, of which there are more
_FIRST_SHARE = 0.1  # of a row in a step of one row, before anything was measured
_FIRST_PASS = 0.2  # of a step: a pass of the smaller model, likewise
_FIRST_CHANCE = 0.7  # of a draft, before any was verified
_PRIOR = 2.0  # how many observations the general rate of a source counts for a sequence
_MATCH_PRIOR = 3.5  # likewise the rate of all sequences for a match's length; also `_FIRST_CHANCE` for that rate
_MATCHES = (REALIGNED, 2, 4, 8, LONGEST_MATCH)  # lengths from which on matches have a rate of their own
_PRIOR_VARIANCE = 0.1  # of rows, which an observation at `_FIRST_SHARE` counts for
_SLOWEST = 3.0  # a step that takes more times as long as expected was disturbed, and counts as so many times


@dataclass(slots=True, eq=False)
class Rate:
    """A share of successes, in which later trials count more."""

    right: float = 0.0
    tried: float = 0.0

    def add(self, right: int, wrong: int) -> None:
        """Count the outcomes of a step."""
        self.right = self.right * _MEMORY + right
        self.tried = self.tried * _MEMORY + right + wrong

    def forget(self, memory: float = _MEMORY) -> None:
        """Count a step without a trial, so that a rate that lets nothing be tried is tried again."""
        self.right *= memory
        self.tried *= memory

    def estimate(self, prior: float, weight: float = _PRIOR) -> float:
        """The rate, as if `weight` trials had been made at the rate `prior`."""
        return (self.right + weight * prior) / (self.tried + weight)


def _match_rates() -> list[Rate]:
    return [Rate() for _ in _MATCHES]


@dataclass(slots=True, eq=False)
class Drafter:
    """What speculation keeps of a sequence.

    Attributes:
        lookup: where its tokens stand.
        rates: how often drafts of its text were right, for each of `_MATCHES`.
        matched: the length of the last match in its text.
        source_rate: how often those of the source were.
        from_source: whether its drafts are the source's.
    """

    lookup: Lookup = field(default_factory=Lookup)
    rates: list[Rate] = field(default_factory=_match_rates)
    matched: int = 0
    source_rate: Rate = field(default_factory=Rate)
    from_source: bool = False


class StepCosts:
    """Seconds of a step as a linear function of its rows, fitted to the latest decode steps."""

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """Count a step."""
        if self._weight:
            seconds = min(seconds, _SLOWEST * self.step(rows))
        self._weight = self._weight * _MEMORY + 1
        self._rows = self._rows * _MEMORY + rows
        self._seconds = self._seconds * _MEMORY + seconds
        self._squares = self._squares * _MEMORY + rows * rows
        self._products = self._products * _MEMORY + rows * seconds

    @property
    def measured(self) -> bool:
        """Whether any step was counted."""
        return bool(self._weight)

    @property
    def row(self) -> float:
        """Seconds of one more row; never less than 0."""
        if not self._weight:
            return _FIRST_SHARE
        rows, seconds = self._rows / self._weight, self._seconds / self._weight
        variance = self._squares / self._weight - rows * rows
        # Steps of equal rows say nothing about the slope.
        expected = _FIRST_SHARE * seconds / (1 + _FIRST_SHARE * (rows - 1))
        covariance = self._products / self._weight - rows * seconds
        return max(0.0, (covariance + _PRIOR_VARIANCE * expected) / (variance + _PRIOR_VARIANCE))

    def step(self, rows: int) -> float:
        """Seconds of a step of `rows` rows."""
        if not self._weight:
            return 1 + _FIRST_SHARE * (rows - 1)
        return max(1e-9, self._seconds / self._weight + self.row * (rows - self._rows / self._weight))


def _first_passes(seconds: float, sequences: int) -> StepCosts:
    """Those of a source's passes before any was measured, beside a step of so many seconds for so many sequences."""
    costs = StepCosts()
    costs.add(sequences, _FIRST_PASS * seconds)
    return costs


class DraftSource(Protocol):
    """What writes drafts besides a sequence's own text: `draft_model.DraftModel` or `mtp_drafts.MtpDrafts`."""

    costs: StepCosts
    """Seconds of a pass, which writes one draft for each sequence."""

    def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Up to so many drafts for each sequence."""
        ...

    def follow(self, works: Seq[Work], chosen: Seq[Seq[int]]) -> None:
        """Take note of a step: the works that were run, and the tokens that were chosen behind each."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that ended."""
        ...

    def sleep(self) -> None:
        """Free its cache; there must be no sequences."""
        ...

    def wake(self) -> None:
        """Make its cache anew."""
        ...


class _Drafts(NamedTuple):
    """Drafts of a sequence's own text, and the chance of each that it is right if those before it are."""

    tokens: list[int]
    chances: list[float]

    @property
    def chance(self) -> float:
        """That of the first."""
        return self.chances[0] if self.chances else 0.0


class _Asked(NamedTuple):
    """A sequence that a source may write drafts for: at most so many, and the chance of each that it is right."""

    sequence: Sequence
    most: int
    chance: float


@dataclass(slots=True, eq=False)
class _PlannedStep:
    """A step as far as it is planned: the tokens that it will give, its seconds, and the rows that are left."""

    tokens: float
    seconds: float
    spare: int

    def add(self, chances: Seq[float], cost: float) -> int:
        """Add as many drafts of a sequence with these chances as pay, each for `cost` seconds; how many they are."""
        likely, count = 1.0, 0
        for chance in chances[: self.spare]:
            likely *= chance
            if likely * self.seconds <= cost * self.tokens:
                break
            self.tokens, self.seconds, count = self.tokens + likely, self.seconds + cost, count + 1
        self.spare -= count
        return count

    def add_passes(self, asked: Seq[_Asked], row: float, passes: StepCosts) -> dict[Sequence, int]:
        """Add passes of a source as long as they pay; of those in `asked` that get drafts, how many.

        Args:
            asked: sequences that may get one of each pass.
            row: seconds of a draft's row.
            passes: the seconds of a pass, by the number of sequences.
        """
        found: dict[Sequence, int] = {}
        depth = 0
        while asked:
            depth += 1
            # Step 1: those for which a place in the pass pays; those of greater chances where few rows are left.
            least = (row + passes.row) * self.tokens / self.seconds
            asked = [each for each in asked if each.most >= depth and each.chance**depth > least]
            asked = sorted(asked, key=lambda each: -each.chance)[: self.spare]
            # Step 2: whether they together pay for it.
            likely = sum(each.chance**depth for each in asked)
            cost = len(asked) * row + passes.step(len(asked)) if asked else 0.0
            if likely * self.seconds <= cost * self.tokens:
                break
            self.tokens, self.seconds, self.spare = self.tokens + likely, self.seconds + cost, self.spare - len(asked)
            found.update((each.sequence, depth) for each in asked)
        return found


class Speculation:
    """Chooses the drafts of each step.

    Args:
        source: writes drafts, too; None: there is none.

    Attributes:
        drafts: works that verified drafts since the start.
        drafted: tokens that they verified.
        accepted: of these, the tokens that were right.
        source: see above. It may be taken away.
    """

    def __init__(self, source: DraftSource | None = None) -> None:
        self.drafts = self.drafted = self.accepted = 0
        self.source = source
        self._costs = StepCosts()
        self._drafters: dict[Sequence, Drafter] = {}
        self._rates = _match_rates()  # of all sequences
        self._source_rate = Rate()

    def plan(self, running: Seq[Sequence]) -> None:
        """Set `drafts` of the sequences that are in decode."""
        step = _PlannedStep(len(running), self._costs.step(len(running)), MOST_ROWS - len(running))
        asked: dict[Sequence, tuple[_Drafts, float]] = {}
        # Once a step, however many sequences there are: a trial of each is a step of trials, too.
        self._source_rate.forget(_SOURCE_MEMORY)
        for sequence in running:
            sequence.drafts, sequence.forced = (), False
            most = min(step.spare, sequence.longest - len(sequence.tokens) - 1)
            # In decode, that is, its prompt was run.
            if most < 1 or sequence.pending != 1 or not sequence.generated:
                continue
            own = _Drafts(*self._find(sequence, most))
            if self.source is not None and (chance := self._retried_chance(sequence)) > own.chance:
                asked[sequence] = own, chance
            else:
                self._take(sequence, own, step)
        if self.source is not None and asked:
            self._ask(self.source, asked, step)

    def _take(self, sequence: Sequence, own: _Drafts, step: _PlannedStep) -> None:
        """Set the drafts of its own text, as many as pay."""
        self._drafter(sequence).from_source = False
        sequence.drafts = tuple(own.tokens[: step.add(own.chances, self._costs.row)])

    def _ask(self, source: DraftSource, asked: Mapping[Sequence, tuple[_Drafts, float]], step: _PlannedStep) -> None:
        """Set the drafts by the source; where that does not pay, those of the sequences' own texts.

        Args:
            source: writes drafts.
            asked: each with its own text's drafts, and the chance of each draft of the source that it is right if those
                before it are.
            step: what is planned so far.
        """
        passes = source.costs if source.costs.measured else _first_passes(step.seconds, len(asked))
        wanted = step.add_passes(
            [
                _Asked(sequence, sequence.longest - len(sequence.tokens) - 1, chance)
                for sequence, (_, chance) in asked.items()
            ],
            self._costs.row,
            passes,
        )
        for sequence, (own, _) in asked.items():
            if sequence in wanted:
                self._drafter(sequence).from_source = True
            else:
                self._take(sequence, own, step)
        for sequence, drafts in (source.draft(wanted) if wanted else {}).items():
            sequence.drafts = tuple(drafts)

    def follow(self, works: Seq[Work], chosen: Seq[Seq[int]]) -> None:
        """Have the source take note of a step, before its works are committed; see `DraftSource`."""
        if self.source is not None:
            self.source.follow(works, chosen)

    def count(self, work: Work, accepted: int) -> None:
        """Learn from a work that was run, of whose drafts the first `accepted` were right."""
        if not work.drafts:
            return
        self.drafts += 1
        self.drafted += len(work.drafts)
        self.accepted += accepted
        drafter = self._drafters.get(work.sequence)
        # A grammar's drafts are always right: they say nothing about those of a match.
        if work.sequence.forced or drafter is None:
            return
        # What follows a wrong draft was not tried.
        if drafter.from_source:
            wrong = int(accepted < len(work.drafts))
            for rate in (drafter.source_rate, self._source_rate):
                rate.add(accepted, wrong)
            return
        for place in range(min(accepted + 1, len(work.drafts))):
            right = int(place < accepted)
            for rate in self._rates_after(drafter, place):
                rate.add(right, 1 - right)

    def time(self, works: Iterable[Work], seconds: float) -> None:
        """Learn from the duration of a step, if all its works were in decode."""
        rows = 0
        for work in works:
            if not work.samples or work.count != 1 + len(work.drafts):
                return
            rows += work.count
        self._costs.add(rows, seconds)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that ended."""
        self._drafters.pop(sequence, None)
        if self.source is not None:
            self.source.forget(sequence)

    def _retried_chance(self, sequence: Sequence) -> float:
        """The chance of each draft of the source that it is right if those before it are, at a new step.

        What is never tried gets more likely, until it is tried again.
        """
        rate = self._drafter(sequence).source_rate
        rate.forget()
        return rate.estimate(self._source_rate.estimate(_FIRST_CHANCE))

    def _drafter(self, sequence: Sequence) -> Drafter:
        drafter = self._drafters.get(sequence)
        if drafter is None:
            drafter = self._drafters[sequence] = Drafter()
        return drafter

    def _rates_after(self, drafter: Drafter, place: int) -> tuple[Rate, Rate]:
        """The rates of the draft with so many right ones before it: the sequence's own, and that of all sequences."""
        group = bisect(_MATCHES, drafter.matched + place) - 1
        return drafter.rates[group], self._rates[group]

    def _find(self, sequence: Sequence, most: int) -> tuple[list[int], list[float]]:
        """Up to `most` drafts by lookup, and the chance of each that it is right if those before it are."""
        drafter = self._drafter(sequence)
        drafts, drafter.matched = drafter.lookup.find(sequence.tokens, most)
        if not drafts:
            return [], []
        for rate in self._rates_after(drafter, 0):
            rate.forget()
        ends = {*sequence.request.eos_token_ids, *sequence.request.stop_token_ids}
        # Nothing follows an end token.
        if not ends.isdisjoint(drafts):
            drafts = drafts[: next(place for place, token in enumerate(drafts) if token in ends)]
        rates = (self._rates_after(drafter, place) for place in range(len(drafts)))
        generals = ((own, general.estimate(_FIRST_CHANCE, _MATCH_PRIOR)) for own, general in rates)
        return drafts, [own.estimate(general, _MATCH_PRIOR) for own, general in generals]
