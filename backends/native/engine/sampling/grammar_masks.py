"""Constrained decoding: token masks from grammars, computed beside the step loop, applied to a batch at once.

Strategy: a grammar is compiled by llguidance (Earley parser over a lexer of derivatives) into an automaton whose mask
has one bit per token id; masking logits by a grammar is as in Willard and Louf, arXiv 2307.09702.

- *Sharing*: all sequences with the same grammar share one compiled automaton and the lexer states it has discovered.
- *Overlap*: masks are computed between steps in worker threads. A step waits `_STEP_WAIT_SECONDS` for them and no
  longer; a sequence without a mask by then is held, that is, left out of steps until its mask is there. This keeps one
  expensive mask from blocking the whole batch (head-of-line blocking).
- *Isolation*: a mask that was slow once is computed in low-priority threads that no step waits for, and the seconds
  of computing are bounded for each sequence, so that a hostile grammar slows down its own sequence only.
- *Replay*: a `Constraint` consumes the tokens that its sequence gained since its last mask. It therefore needs no
  rollback when a sequence is preempted or a step is run again.
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

from backends.native.engine.sampling.grammar_drafts import GrammarDrafts, follow_drafts
from backends.native.engine.scheduling.scheduler import MOST_ROWS
from backends.native.engine.scheduling.sequence import Sequence
from backends.native.grammar.grammar import GrammarError, Grammars, background_threads, raise_error

# Bits of a mask's word: llguidance writes masks as 32-bit words, the lowest bit for the lowest token id.
WORD = 32
_THREADS = 2
# Sequences that use an automaton keep it alive; the bound is on those kept for later ones.
_CACHED_AUTOMATA = 32  # least recently used ones are dropped
_STEP_WAIT_SECONDS = 0.005  # how long a step waits for masks, or an engine whose sequences are all held for one of them
_SLOW_MASK_SECONDS = 0.0005  # CPU time from which on a mask is slow
# CPU time that a sequence may spend on its grammar: once, and for each generated token.
_MAX_SECONDS, _MAX_SECONDS_PER_TOKEN = 1.0, 0.002


class Automaton(NamedTuple):
    """A compiled grammar.

    Attributes:
        matcher: the automaton in its start state.
        first: [words] int32, the mask before the first token.
        seconds: CPU time of compiling and of that mask.
        slow: whether that mask was slow.
    """

    matcher: LLMatcher
    first: Tensor
    seconds: float
    slow: bool


class Constraint:
    """The grammar of one sequence: compiled first, then followed token by token.

    Args:
        automata: compiles and caches the automaton.
        source: the grammar in llguidance's form.
        prompt: number of leading tokens that the grammar does not apply to.

    Attributes:
        job: the last job submitted: compiling, then computing a mask. While it runs, only the job may touch the other
            attributes.
        slow: whether the last mask was slow.
        drafts: behind the tokens of the mask; None if there are none.
        words: [words] int32, the mask: one bit for each token id that may come next.
    """

    __slots__ = (
        "_automata",
        "_error",
        "_length",
        "_matcher",
        "_private",
        "_prompt",
        "_seconds",
        "_source",
        "_target",
        "drafts",
        "job",
        "slow",
        "words",
    )

    def __init__(self, automata: Automata, source: str, prompt: int) -> None:
        self._automata = automata
        self._source = source
        self._prompt = prompt
        self._length = -1  # tokens of the sequence that the mask follows; -1: not compiled yet
        self._matcher: LLMatcher | None = None
        self._private = False  # whether the automaton is not shared
        self._seconds = 0.0
        self._error: GrammarError | None = None
        self._target = (0, 0)  # address and bytes of `words`
        self.job: Future[Any] = automata.get(source)
        self.slow = False
        self.drafts: GrammarDrafts | None = None
        self.words: Tensor

    def ready(self, tokens: Seq[int]) -> bool:
        """Whether `words` is the mask for what may follow all of `tokens`.

        Raises:
            backends.native.grammar.grammar.GrammarError: the grammar cannot be compiled, takes too long, or rejects
                the tokens.
        """
        # After a job: begin with the compiled automaton; or, if following it failed, follow once more with a private
        # one. Until then only `_length` is read here: the job writes it last, when the mask is complete.
        if self._length != len(tokens) and self.job.done():
            if self.job.exception() is not None:
                # A failed compilation must not stay cached: later sequences would get its exception even if the cause
                # was temporary.
                self._automata.forget(self._source)
            automaton = self.job.result()
            if self._length < 0:
                self._begin(automaton)
            elif self._error is not None:
                self._restart_private()
        return self._length == len(tokens)

    def follow(self, tokens: Seq[int], proposed: Seq[int] = (), most_drafts: int = 0) -> None:
        """Compute `words` for what may follow all of `tokens`. Runs as a job; `ready` raises its error.

        Args:
            tokens: of the sequence.
            proposed: drafts, where the grammar leaves a choice.
            most_drafts: the most drafts; 0: none.
        """
        began = time.thread_time()  # CPU time: a busy machine must not count against the grammar
        try:
            self._compute_mask(tokens)
        except GrammarError as error:
            # Kept, not raised: one job follows many constraints (`_follow_all`), and an exception would leave the rest
            # of them without a mask.
            self._error = error
            return
        seconds = time.thread_time() - began
        self.drafts = None
        self.slow = seconds > _SLOW_MASK_SECONDS
        # Only behind quick masks; and if drafts ran the automaton into one of its limits, the private one, which then
        # replaces it, is spared them.
        if most_drafts and not (self.slow or self._private) and self._matcher is not None:
            self.drafts = follow_drafts(self._matcher, proposed, most_drafts, len(self.words))
            if self._matcher.is_error():
                self._error = GrammarError("its drafts cannot be followed.")
                return
        self._seconds += seconds
        # The budget grows with the output, so a long text with a cheap grammar never exceeds it. Private: there is
        # nobody to share the blame, hence no second attempt.
        if self._seconds > _MAX_SECONDS + _MAX_SECONDS_PER_TOKEN * (len(tokens) - self._prompt):
            self._error, self._private = GrammarError("it takes too long to follow."), True
        else:
            self._length = len(tokens)

    def leave(self) -> None:
        """Release the automaton: the sequence ended."""
        self._automata.leave(self._source)

    def _begin(self, automaton: Automaton) -> None:
        self._matcher = automaton.matcher.deep_copy()  # shares the discovered lexer states, not the position
        self._seconds = automaton.seconds
        # The first mask came with the automaton, so a sequence whose grammar is cached can start without a job of its
        # own.
        self._length = self._prompt
        self.slow = automaton.slow
        self.words = automaton.first

    def _compute_mask(self, tokens: Seq[int]) -> None:
        length = self._length
        # After `_restart_private`: compile in this thread, then replay the whole output, `tokens[self._prompt:]`.
        if self._matcher is None:
            self._matcher, length = self._automata.compile(self._source), self._prompt
        if length == self._prompt:
            self.words = torch.empty_like(self.words)  # until now the automaton's first mask, which is shared
            # Written in place from here on. The mask of the last step is not in use any more: this job runs only while
            # the sequence is held.
            self._target = (self.words.data_ptr(), self.words.nbytes)
        if self.slow:
            _consume_without_gil(self._matcher, tokens[length:], self._automata.idle())
        else:
            self._matcher.consume_tokens(list(tokens[length:]))
        # 'unsafe' is llguidance's word for an address that it cannot check: it must have `nbytes` writable bytes and
        # stay alive.
        self._matcher.unsafe_compute_mask_ptr(*self._target)
        # A matcher keeps its first error, such as a token that the grammar rejects, instead of raising it.
        raise_error(self._matcher)

    def _restart_private(self) -> None:
        """Follow the grammar again with a private automaton: an error of a shared one is seen by all that share it."""
        # The error comes from this sequence's own automaton, or is one of time: final.
        if self._private and self._error is not None:
            raise self._error
        self._automata.forget(self._source)
        self._private = self.slow = True
        self._matcher = self._error = None


class Automata:
    """Compiles grammars in the background and caches the automata, least recently used ones dropped first.

    Args:
        grammars: compiles for the model's tokenizer.
        threads: run the compilations.
    """

    def __init__(self, grammars: Grammars, threads: Executor) -> None:
        self._grammars = grammars
        self._threads = threads
        self._cached: OrderedDict[str, Future[Automaton]] = OrderedDict()
        self._users: Counter[str] = Counter()

    def get(self, source: str) -> Future[Automaton]:
        """Return the automaton that all sequences with this grammar share. Each call needs one `leave`."""
        self._users[source] += 1
        # Popped and inserted again: the dictionary's order is from least to most recently used. The future is cached at
        # once, so that concurrent sequences with one grammar wait for a single compilation.
        automaton = self._cached.pop(source, None) or self._threads.submit(self._compile, source)
        self._cached[source] = automaton
        if len(self._cached) > _CACHED_AUTOMATA:
            self._cached.popitem(last=False)
        return automaton

    def leave(self, source: str) -> None:
        """Count one user less. A compilation that nobody waits for is cancelled unless it has started."""
        self._users[source] -= 1
        if self._users[source] == 0:
            del self._users[source]
            # `Future.cancel` succeeds only while the job is queued. The cancelled future must leave the cache, or the
            # next user would get its CancelledError.
            if source in self._cached and self._cached[source].cancel():
                self.forget(source)

    def forget(self, source: str) -> None:
        """Drop the automaton from the cache, so that later sequences compile the grammar again."""
        self._cached.pop(source, None)

    def compile(self, source: str) -> LLMatcher:
        """Compile a private automaton. May be called from any thread."""
        return self._grammars.compile(source)

    def idle(self) -> LLMatcher:
        """Return a matcher without a grammar, for `_consume_without_gil`."""
        return self._grammars.idle()

    def _compile(self, source: str) -> Automaton:
        began = time.thread_time()
        matcher = self._grammars.compile(source)
        compiled = time.thread_time()
        # Computed here and shared: every sequence with this grammar needs the same first mask.
        first = torch.empty(-(-self._grammars.width // WORD), dtype=torch.int32)
        matcher.unsafe_compute_mask_ptr(first.data_ptr(), first.nbytes)
        raise_error(matcher)
        now = time.thread_time()
        return Automaton(matcher, first, now - began, now - compiled > _SLOW_MASK_SECONDS)


class Constraints:
    """Creates the constraints of an engine and computes their masks in threads.

    Attributes:
        speculates: whether drafts are looked for.

    Args:
        grammars: compiles for the model's tokenizer.
    """

    def __init__(self, grammars: Grammars) -> None:
        self.speculates = False
        self._masks = ThreadPoolExecutor(_THREADS, thread_name_prefix="masks")
        self._slow = background_threads(_THREADS, "slow-masks")
        self._automata = Automata(grammars, background_threads(_THREADS, "grammar"))

    @classmethod
    def load(cls, folder: str, vocab_size: int, eos_token_ids: tuple[int, ...]) -> Constraints | None:
        """Make them for a checkpoint; None if it has no fast tokenizer or no end token."""
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError):
            return None  # without a tokenizer the model can be served with token ids only
        grammars = Grammars.of(tokenizer, vocab_size, eos_token_ids)
        return None if grammars is None else cls(grammars)

    def begin(self, source: str, prompt: int) -> Constraint:
        """Make a constraint on what follows `prompt` tokens."""
        return Constraint(self._automata, source, prompt)

    def prepare(self, sequences: Seq[Sequence]) -> list[tuple[Sequence, Exception]]:
        """Compute the masks of the next step; hold every sequence whose mask is not ready in time.

        Returns:
            The sequences that cannot continue, each with its error.
        """
        failed: list[tuple[Sequence, Exception]] = []
        # Twice: masks that earlier jobs have finished in the meantime need no new job, and quick jobs may be done
        # within `_submit`'s wait.
        without_job = _hold(sequences, failed)
        self._submit(without_job)
        _hold(without_job, failed)
        return failed

    def _submit(self, sequences: Seq[Sequence]) -> None:
        """Submit one job for all quick masks and one for each slow mask; wait a little for the quick ones."""
        quick: list[tuple[Constraint, list[int], Seq[int], int]] = []
        for sequence in sequences:
            constraint = constraint_of(sequence)
            # `sequence.tokens` is passed without a copy: the sequence is held until its mask is there, so no step
            # appends to it.
            given = sequence.tokens, sequence.drafts, self._most_drafts(sequence)
            if constraint.slow:
                constraint.job = self._slow.submit(constraint.follow, *given)
            else:
                quick.append((constraint, *given))
        if quick:
            # One job for all: one hand-over to a thread and one wait, however many sequences have a grammar.
            job = self._masks.submit(_follow_all, quick)
            for constraint, *_ in quick:
                constraint.job = job
            with suppress(TimeoutError):
                job.exception(_STEP_WAIT_SECONDS)  # `ready` raises the exception

    def _most_drafts(self, sequence: Sequence) -> int:
        in_decode = self.speculates and sequence.generated
        return max(0, min(MOST_ROWS, sequence.longest - len(sequence.tokens)) - 1) if in_decode else 0

    @staticmethod
    def wait(sequences: Seq[Sequence]) -> None:
        """Wait up to `_STEP_WAIT_SECONDS` until one of the held sequences may have its mask."""
        wait([constraint_of(sequence).job for sequence in sequences], _STEP_WAIT_SECONDS, FIRST_COMPLETED)


def constraint_of(sequence: Sequence) -> Constraint:
    """The constraint of a sequence that has one."""
    assert isinstance(sequence.constraint, Constraint)
    return sequence.constraint


def _hold(sequences: Seq[Sequence], failed: list[tuple[Sequence, Exception]]) -> list[Sequence]:
    """Hold the sequences whose masks are not ready; return those of them that no job is running for."""
    without_job = []
    for sequence in sequences:
        constraint = constraint_of(sequence)
        # Asked before `ready`, which must have seen how the job ended: if it ended behind its back, the next job would
        # write the mask again while a step reads it.
        ended = constraint.job.done()
        try:
            sequence.held = not constraint.ready(sequence.tokens)
            # While it is held, its drafts are the proposal that a job reads; then they are what the grammar allows.
            if not sequence.held:
                found = constraint.drafts
                sequence.drafts, sequence.forced = (found.tokens, found.forced) if found is not None else ((), False)
        except Exception as error:  # the engine's top: a bad sequence must not harm the others
            failed.append((sequence, error))
            continue
        # Held with a finished job: its mask is for fewer tokens than there are now, or it failed and is to be followed
        # again.
        if sequence.held and ended:
            without_job.append(sequence)
    return without_job


def _follow_all(quick: Seq[tuple[Constraint, list[int], Seq[int], int]]) -> None:
    for constraint, tokens, proposed, most_drafts in quick:
        constraint.follow(tokens, proposed, most_drafts)


def _consume_without_gil(matcher: LLMatcher, tokens: Seq[int], idle: LLMatcher) -> None:
    """As `consume_tokens`, but without holding the GIL, which an executor releases only for two or more matchers."""
    for token in tokens:
        _executor().consume_token_par([(matcher, token), (idle, token)])


@cache
def _executor() -> LLExecutor:
    return LLExecutor(_THREADS)
