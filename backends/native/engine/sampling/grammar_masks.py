"""Constrained decoding: grammars are compiled and followed beside the step loop, and applied to a batch at once.

All sequences with the same grammar share one automaton: what one of them made it find out, the others need not. Masks
are made between steps, in a thread for which a step waits a little and no more; a sequence whose mask is not there then
is left out of steps until it is. Masks that take long are made in threads of low priority that no step waits for, so
that a hostile grammar slows its own sequence.

A `Constraint` follows its sequence's tokens as far as they were generated when it is next asked, so neither preemption
nor a step that is run again touches it.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Sequence as Seq
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor
from transformers import AutoTokenizer

from backends.native.engine.scheduling.sequence import Sequence
from backends.native.grammar.grammar import GrammarError, Grammars, background_threads, raise_error

_NEVER = float("-inf")
_WORD = 32
_THREADS = 2
_KEPT = 32  # automata, for the next sequences with the same grammars
_PATIENCE = 0.005  # seconds that a step waits for masks, or an idle engine for anything
_LONG = 0.0005  # seconds of computing after which a mask is slow
# Seconds of computing, for a sequence's grammar, and for each of its tokens.
_MOST_SECONDS, _MOST_SECONDS_A_TOKEN = 1.0, 0.002


class Automaton(NamedTuple):
    """A compiled grammar, its mask before the first token, the seconds both took, and whether the mask was slow."""

    matcher: LLMatcher
    first: Tensor
    seconds: float
    slow: bool


class Constraint:
    """A sequence's grammar: being compiled at first, then followed.

    Args:
        automata: where its automaton comes from.
        source: the grammar.
        prompt: tokens of the sequence that the grammar says nothing of.

    Attributes:
        job: what was last begun for it: compiling, then making a mask. While it runs, the rest is the job's.
        slow: whether its last mask took long.
        words: [words] int32, a bit for each id that may come next.
    """

    __slots__ = (
        "_automata",
        "_error",
        "_known",
        "_matcher",
        "_own",
        "_prompt",
        "_seconds",
        "_source",
        "_target",
        "job",
        "slow",
        "words",
    )

    def __init__(self, automata: Automata, source: str, prompt: int) -> None:
        self._automata = automata
        self._source = source
        self._prompt = prompt
        self._known = -1  # tokens that the mask is for
        self._matcher: LLMatcher | None = None
        self._own = False  # whether nobody shares its automaton
        self._seconds = 0.0
        self._error: GrammarError | None = None
        self._target = (0, 0)  # where `words` is, and its bytes
        self.job: Future[Any] = automata.get(source)
        self.slow = False
        self.words: Tensor

    def ready(self, tokens: Seq[int]) -> bool:
        """Whether `words` says what may follow all of `tokens`.

        Raises:
            backends.native.grammar.grammar.GrammarError: the grammar cannot be compiled, takes too long, or rejects
                the tokens.
        """
        if self._known != len(tokens) and self.job.done():
            if self.job.exception() is not None:
                self._automata.forget(self._source)
            made = self.job.result()
            if self._known < 0:
                self._begin(made)
            elif self._error is not None:
                self._take_own()
        return self._known == len(tokens)

    def follow(self, tokens: Seq[int]) -> None:
        """Make `words` for what may follow all of `tokens`: a job. `ready` tells what it ran into."""
        began = time.thread_time()  # a busy machine is not the grammar's fault
        try:
            self._make(tokens)
        except GrammarError as error:
            self._error = error
            return
        seconds = time.thread_time() - began
        self.slow = seconds > _LONG
        self._seconds += seconds
        if self._seconds > _MOST_SECONDS + _MOST_SECONDS_A_TOKEN * (len(tokens) - self._prompt):
            self._error, self._own = GrammarError("it takes too long to follow."), True
        else:
            self._known = len(tokens)

    def leave(self) -> None:
        """Its sequence is gone."""
        self._automata.leave(self._source)

    def _begin(self, automaton: Automaton) -> None:
        self._matcher = automaton.matcher.deep_copy()  # shares what the automaton finds out, not where it is
        self._seconds = automaton.seconds
        self._known = self._prompt
        self.slow = automaton.slow
        self.words = automaton.first

    def _make(self, tokens: Seq[int]) -> None:
        known = self._known
        if self._matcher is None:
            self._matcher, known = self._automata.compile(self._source), self._prompt
        if known == self._prompt:
            self.words = torch.empty_like(self.words)  # what was there is everybody's
            self._target = (self.words.data_ptr(), self.words.nbytes)
        if self.slow:
            _consume_aside(self._matcher, tokens[known:], self._automata.idle())
        else:
            self._matcher.consume_tokens(list(tokens[known:]))
        self._matcher.unsafe_compute_mask_ptr(*self._target)
        raise_error(self._matcher)

    def _take_own(self) -> None:
        """Begin again alone: an automaton that fails one sequence fails all that share it."""
        if self._own and self._error is not None:
            raise self._error
        self._automata.forget(self._source)
        self._own = self.slow = True
        self._matcher = self._error = None


class Automata:
    """Compiles grammars, and keeps what it compiled last.

    Args:
        grammars: of the model's tokenizer.
        threads: to compile in.
    """

    def __init__(self, grammars: Grammars, threads: Executor) -> None:
        self._grammars = grammars
        self._threads = threads
        self._kept: OrderedDict[str, Future[Automaton]] = OrderedDict()
        self._users: Counter[str] = Counter()

    def get(self, source: str) -> Future[Automaton]:
        """The one that all sequences with a grammar share. `leave` when it is not wanted any more."""
        self._users[source] += 1
        automaton = self._kept.pop(source, None) or self._threads.submit(self._make, source)
        self._kept[source] = automaton
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return automaton

    def leave(self, source: str) -> None:
        """One sequence wants it no more. What none wants is not compiled, if that has not begun."""
        self._users[source] -= 1
        if self._users[source] == 0:
            del self._users[source]
            if source in self._kept and self._kept[source].cancel():
                self.forget(source)

    def forget(self, source: str) -> None:
        """Share it no further."""
        self._kept.pop(source, None)

    def compile(self, source: str) -> LLMatcher:
        """One that nobody shares. In any thread."""
        return self._grammars.compile(source)

    def idle(self) -> LLMatcher:
        """One that does nothing."""
        return self._grammars.idle()

    def _make(self, source: str) -> Automaton:
        began = time.thread_time()
        matcher = self._grammars.compile(source)
        compiled = time.thread_time()
        first = torch.empty(-(-self._grammars.width // _WORD), dtype=torch.int32)
        matcher.unsafe_compute_mask_ptr(first.data_ptr(), first.nbytes)
        raise_error(matcher)
        now = time.thread_time()
        return Automaton(matcher, first, now - began, now - compiled > _LONG)


class Constraints:
    """Begins constraints and has their masks made.

    Args:
        grammars: of the model's tokenizer.
    """

    def __init__(self, grammars: Grammars) -> None:
        self._masks = ThreadPoolExecutor(_THREADS, thread_name_prefix="masks")
        self._slow = background_threads(_THREADS, "slow-masks")
        self._automata = Automata(grammars, background_threads(_THREADS, "grammar"))

    @classmethod
    def load(cls, folder: str, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Constraints | None:
        """Those for a checkpoint; None if its tokenizer or its lack of an end token does not allow for any."""
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError):
            return None  # token ids are all that such a model is asked with
        grammars = Grammars.of(tokenizer, vocab_size, eos_token_ids)
        return None if grammars is None else cls(grammars)

    def begin(self, source: str, prompt: int) -> Constraint:
        """A constraint on what follows `prompt` tokens."""
        return Constraint(self._automata, source, prompt)

    def prepare(self, sequences: Seq[Sequence]) -> list[tuple[Sequence, Exception]]:
        """Have masks made for what comes next, and hold the sequences whose masks are not there in time.

        Returns:
            The sequences that cannot go on, and why.
        """
        failed: list[tuple[Sequence, Exception]] = []
        lacking = _hold(sequences, failed)
        self._follow(lacking)
        _hold(lacking, failed)
        return failed

    def _follow(self, sequences: Seq[Sequence]) -> None:
        quick = [(sequence.constraint, sequence.tokens) for sequence in sequences if not sequence.constraint.slow]
        for sequence in sequences:
            if sequence.constraint.slow:
                sequence.constraint.job = self._slow.submit(sequence.constraint.follow, sequence.tokens)
        if quick:
            job = self._masks.submit(_follow_all, quick)
            for constraint, _ in quick:
                constraint.job = job
            with suppress(TimeoutError):
                job.exception(_PATIENCE)  # which `ready` tells

    @staticmethod
    def wait(sequences: Seq[Sequence]) -> None:
        """Give sequences that are held a moment."""
        wait([sequence.constraint.job for sequence in sequences], _PATIENCE, FIRST_COMPLETED)


def _hold(sequences: Seq[Sequence], failed: list[tuple[Sequence, Exception]]) -> list[Sequence]:
    """Hold those whose masks are not there, and return those of them that nothing is being done for."""
    lacking = []
    for sequence in sequences:
        try:
            sequence.held = not sequence.constraint.ready(sequence.tokens)
        except Exception as error:  # the engine's top: a bad sequence must not harm the others
            failed.append((sequence, error))
            continue
        if sequence.held and sequence.constraint.job.done():
            lacking.append(sequence)
    return lacking


def _follow_all(followed: Seq[tuple[Constraint, list[int]]]) -> None:
    for constraint, tokens in followed:
        constraint.follow(tokens)


def mask_scores(scores: Tensor, rows: Seq[int], masks: Seq[Tensor]) -> None:
    """Forbid, in place, what the grammars of some rows do not allow next.

    Args:
        scores: [all rows, vocabulary].
        rows: those with a grammar.
        masks: their `words`.
    """
    if not rows:
        return
    words = torch.stack(list(masks)).to(scores.device)
    allowed = words.unsqueeze(-1) & _bits(scores.device)
    forbidden = (allowed == 0).flatten(1)[:, : scores.shape[1]]
    index = torch.tensor(rows, device=scores.device)
    scores.index_copy_(0, index, scores.index_select(0, index).masked_fill_(forbidden, _NEVER))


def _consume_aside(matcher: LLMatcher, tokens: Seq[int], idle: LLMatcher) -> None:
    """As `consume_tokens`, but other threads may run meanwhile: an executor lets them if it has two to look after."""
    for token in tokens:
        _executor().consume_token_par([(matcher, token), (idle, token)])


@cache
def _executor() -> LLExecutor:
    return LLExecutor(_THREADS)


@cache
def _bits(device: torch.device) -> Tensor:
    """[32] int32, the bits of a word."""
    return torch.tensor(1).bitwise_left_shift(torch.arange(_WORD)).to(torch.int32).to(device)
