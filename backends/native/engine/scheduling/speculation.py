"""Speculation: how many draft tokens a step verifies for each sequence, so that it pays.

Strategy: the noise of sampling is a function of (seed, position, token), so a draft is right exactly when it would have
been drawn. A step runs a sequence's last token and its drafts together, chooses a token after each of them, and keeps
the choices up to the first that differs from its draft: the text is that of single steps (`sampling.sampler`).

Drafts come from the sequence's own text (`lookup`) or from its grammar, where that leaves no choice
(`sampling.grammar_drafts`). The latter are always right. One of the former is verified if it pays: each draft adds a
row to the step, and it pays if the chance that it is right is greater than what the row costs, in tokens:

    chance > seconds of a row * tokens of the step / seconds of the step.

With one sequence a row costs little, since a decode step is bound by reading weights; with many sequences few drafts
pay. Both sides are measured while serving: `StepCosts` and `AcceptanceRates`. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from backends.native.engine.scheduling.lookup import LONGEST_MATCH, Lookup
from backends.native.engine.scheduling.scheduler import MOST_ROWS
from backends.native.engine.scheduling.sequence import Sequence, Work

_MEMORY = 0.98  # how much an observation counts after the next one
_FIRST_SHARE = 0.1  # of a row in a step of one row, before anything was measured
_FIRST_CHANCE = 0.7  # of a draft, before any was verified
_PRIOR = 2.0  # how many observations the general rate of a match's length counts for a sequence
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

    def forget(self) -> None:
        """Count a step without a trial, so that a rate that lets nothing be tried is tried again."""
        self.right *= _MEMORY
        self.tried *= _MEMORY

    def estimate(self, prior: float) -> float:
        """The rate, as if `_PRIOR` trials had been made at the rate `prior`."""
        return (self.right + _PRIOR * prior) / (self.tried + _PRIOR)


@dataclass(slots=True, eq=False)
class Drafter:
    """What speculation keeps of a sequence: where its tokens stand, how often its drafts were right, the last match."""

    lookup: Lookup = field(default_factory=Lookup)
    rate: Rate = field(default_factory=Rate)
    matched: int = 0


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


class Speculation:
    """Chooses the drafts of each step.

    Attributes:
        drafts: works that verified drafts since the start.
        drafted: tokens that they verified.
        accepted: of these, the tokens that were right.
    """

    def __init__(self) -> None:
        self.drafts = self.drafted = self.accepted = 0
        self._costs = StepCosts()
        self._drafters: dict[Sequence, Drafter] = {}
        self._rates = [Rate() for _ in range(LONGEST_MATCH + 1)]  # by the length of the match

    def plan(self, running: Seq[Sequence]) -> None:
        """Set `drafts` of the sequences that are in decode."""
        tokens, spare = float(len(running)), MOST_ROWS - len(running)
        row, seconds = self._costs.row, self._costs.step(len(running))
        for sequence in running:
            sequence.drafts, sequence.forced = (), False
            most = min(spare, sequence.longest - len(sequence.tokens) - 1)
            # In decode, that is, its prompt was run.
            if most < 1 or sequence.pending != 1 or not sequence.generated:
                continue
            drafts, chance = self._find(sequence, most)
            likely = 1.0
            for count in range(len(drafts)):
                likely *= chance
                if likely * seconds <= row * tokens:
                    drafts = drafts[:count]
                    break
                tokens, seconds = tokens + likely, seconds + row
            sequence.drafts = tuple(drafts)
            spare -= len(drafts)

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
        wrong = int(accepted < len(work.drafts))
        drafter.rate.add(accepted, wrong)
        self._rates[drafter.matched].add(accepted, wrong)

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

    def _find(self, sequence: Sequence, most: int) -> tuple[list[int], float]:
        """Up to `most` drafts by lookup, and the chance of each that it is right if those before it are."""
        drafter = self._drafters.get(sequence)
        if drafter is None:
            drafter = self._drafters[sequence] = Drafter()
        drafts, drafter.matched = drafter.lookup.find(sequence.tokens, most)
        if not drafts:
            return drafts, 0.0
        general = self._rates[drafter.matched]
        drafter.rate.forget()
        general.forget()
        ends = {*sequence.request.eos_token_ids, *sequence.request.stop_token_ids}
        # Nothing follows an end token.
        if not ends.isdisjoint(drafts):
            drafts = drafts[: next(place for place, token in enumerate(drafts) if token in ends)]
        return drafts, drafter.rate.estimate(general.estimate(_FIRST_CHANCE))
