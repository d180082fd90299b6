"""Constrained decoding: grammars are compiled beside the step loop, followed per sequence, applied to a batch at once.

A `Constraint` follows its sequence's tokens as far as they were generated when it is next asked, so neither preemption
nor a step that is run again touches it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any

import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor
from transformers import AutoTokenizer

from backends.native.engine.weights import LoadedModel
from backends.native.grammar import Grammars, raise_error

_NEVER = float("-inf")
_WORD = 32
_THREADS = 2


class Constraint:
    """A sequence's grammar, being compiled at first.

    Args:
        compiling: the automaton to come.
        known: tokens of the sequence that the grammar says nothing of: its prompt's.
        width: ids that a mask covers.
    """

    __slots__ = ("_compiling", "_known", "width")

    def __init__(self, compiling: Future[LLMatcher], known: int, width: int) -> None:
        self._compiling = compiling
        self._known = known
        self.width = width

    @property
    def compiled(self) -> bool:
        """Whether it can be followed, or is known not to be."""
        return self._compiling.done()

    def wait(self, seconds: float) -> None:
        """Give it time to compile."""
        wait([self._compiling], seconds)

    def forget(self) -> None:
        """Nobody will follow it: not to be compiled, if that has not begun."""
        self._compiling.cancel()

    def follow(self, tokens: list[int]) -> LLMatcher:
        """The automaton after all of `tokens`.

        Raises:
            backends.native.grammar.GrammarError: it cannot be compiled, or they are against it.
        """
        matcher = self._compiling.result()
        matcher.consume_tokens(tokens[self._known :])
        self._known = len(tokens)
        raise_error(matcher)
        return matcher


class Compiler:
    """Begins constraints, compiling in threads of its own.

    Args:
        grammars: of the model's tokenizer.
    """

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")

    @classmethod
    def load(cls, folder: str, loaded: LoadedModel) -> Compiler | None:
        """The compiler for a checkpoint; None if its tokenizer or its lack of an end token does not allow for one."""
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError):
            return None  # token ids are all that such a model is asked with
        grammars = Grammars.of(tokenizer, loaded.vocab_size, loaded.eos_token_ids)
        return None if grammars is None else cls(grammars)

    def begin(self, source: str, prompt: int) -> Constraint:
        """A constraint on what follows `prompt` tokens."""
        return Constraint(self._threads.submit(self._grammars.compile, source), prompt, self._grammars.width)


def mask_scores(scores: Tensor, constraints: Seq[tuple[int, Constraint, list[int]]]) -> None:
    """Forbid, in place, what the grammars of some rows do not allow next.

    Args:
        scores: [rows, vocabulary].
        constraints: row, constraint, and the tokens of the row's sequence.

    Raises:
        backends.native.grammar.GrammarError: one of them cannot be followed.
    """
    if not constraints:
        return
    width = constraints[0][1].width
    words = torch.zeros(len(constraints), -(-width // _WORD), dtype=torch.int32)
    matchers = [constraint.follow(tokens) for _, constraint, tokens in constraints]
    _executor().unsafe_compute_mask_ptr(
        list(zip(matchers, range(len(matchers)), strict=True)), words.data_ptr(), words.shape[1] * 4, len(matchers)
    )
    for matcher in matchers:
        raise_error(matcher)
    bits = torch.arange(_WORD, dtype=torch.int32, device=scores.device)
    allowed = (words.to(scores.device).unsqueeze(-1) >> bits).bitwise_and_(1).flatten(1)[:, : scores.shape[1]]
    rows = torch.tensor([row for row, _, _ in constraints], device=scores.device)
    scores[rows] = scores[rows].masked_fill_(allowed == 0, _NEVER)


@cache
def _executor() -> LLExecutor:
    """Fills the masks of a batch in parallel."""
    return LLExecutor(_THREADS)
