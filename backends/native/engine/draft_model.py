"""Draft tokens by a smaller model of the same vocabulary (speculative decoding, arXiv 2211.17192).

Strategy: a draft is chosen as the large model chooses a token: with the request's sampling, and with the noise of its
seed, position and token. Where the two models' distributions are alike they therefore draw the same token, sampled as
well as greedy. The large model verifies what the small one writes (`scheduling.speculation`): no text depends on it.

The small model has a KV cache of its own, and for each sequence a shadow that follows its tokens. Shadows share no
blocks; where none are left, a sequence gets no drafts. Grammars, LoRA adapters and images are not followed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from msgspec.structs import replace
from transformers import AutoTokenizer

from backends.native.engine.runner.packed import Runner
from backends.native.engine.sampling.sampler import NoDistribution, noise_keys, sample
from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.scheduling.speculation import Speculation, StepCosts

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Shadow(Sequence):
    """A sequence as the source of its drafts has it.

    Attributes:
        known: how many of its tokens are those of the large model's sequence; drafts follow them.
        most: the most drafts that are wanted.
    """

    known: int = 0
    most: int = 0

    @classmethod
    def of(cls, sequence: Sequence) -> Shadow:
        """The shadow of a sequence, without tokens behind its prompt."""
        # Only tokens are chosen here.
        request = replace(sequence.request, grammar=None, lora_adapter="", pool=False, block_keys=b"")
        request = replace(request, top_logprobs=-1, prompt_logprobs=-1)
        return cls(sequence.connection, request, sequence.arrival)

    @property
    def draft_tokens(self) -> list[int]:
        """The drafts so far."""
        return self.tokens[self.known :]

    def follow(self, tokens: list[int]) -> None:
        """Take over the tokens of the large model's sequence, which only grow."""
        if len(tokens) == self.known:  # no step has run since: the drafts are drafts still
            return
        right = self.known
        while right < min(len(self.tokens), len(tokens)) and self.tokens[right] == tokens[right]:
            right += 1
        self.tokens[right:] = tokens[right:]
        self.computed = min(self.computed, right)
        self.history = None  # it counts tokens that only grow
        self.known = len(tokens)

    def add(self, token: int) -> bool:
        """Append a draft, unless it is an end token: nothing follows that. Returns whether it was appended."""
        if token in self.request.eos_token_ids or token in self.request.stop_token_ids:
            return False
        self.tokens.append(token)
        return True


class DraftModel:
    """Writes drafts for many sequences at once. Implements `speculation.DraftSource`.

    Args:
        runner: runs the small model.
        pool: the blocks of its cache.
        step_tokens: the most tokens that a call catches up with.
        vocab_size: token ids that both models have are less than this; sequences with others get no drafts.
        context_length: the most tokens that it can follow.

    Attributes:
        costs: seconds of its forward passes.
    """

    def __init__(
        self, runner: Runner, pool: BlockPool, *, step_tokens: int, vocab_size: int, context_length: int
    ) -> None:
        self.costs = StepCosts()
        self._runner = runner
        self._pool = pool
        self._step_tokens = step_tokens
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._shadows: dict[Sequence, Shadow] = {}

    def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Up to so many drafts for each sequence; none for one whose prompt takes further calls to catch up with."""
        found: dict[Sequence, Shadow] = {}
        works, budget = [], self._step_tokens
        for sequence, most in wanted.items():
            shadow = self._follow(sequence, most)
            if shadow is None:
                continue
            found[sequence] = shadow
            count = min(shadow.pending, budget)
            if count and len(shadow.draft_tokens) < most:
                works.append(Work(shadow, shadow.computed, count, samples=count == shadow.pending))
                budget -= count
        with torch.inference_mode():
            while works:
                works = self._run(works)
        return {sequence: shadow.draft_tokens[: shadow.most] for sequence, shadow in found.items()}

    def follow(self, works: Seq[Work], chosen: Seq[Seq[int]]) -> None:
        """Nothing: it follows sequences when it is asked for drafts."""

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that ended."""
        shadow = self._shadows.pop(sequence, None)
        if shadow is not None:
            self._pool.release(shadow.blocks)
            self._runner.forget(shadow)

    def sleep(self) -> None:
        """Free the cache; there must be no sequences."""
        self._runner.sleep()

    def wake(self) -> None:
        """Make the cache anew."""
        self._runner.wake()

    def _follow(self, sequence: Sequence, most: int) -> Shadow | None:
        """The shadow of a sequence, with its tokens and with blocks for drafts; None: it gets none."""
        if sequence.request.features:
            return None
        shadow = self._shadows.get(sequence)
        if shadow is None:
            shadow = self._shadows[sequence] = Shadow.of(sequence)
        end = len(sequence.tokens) + most - 1  # the last draft is not run
        if end > self._context_length or max(sequence.tokens[shadow.known :], default=0) >= self._vocab_size:
            return None
        missing = self._pool.blocks_for(end) - len(shadow.blocks)
        if missing > self._pool.free:
            return None
        shadow.blocks.extend(self._pool.allocate(max(0, missing)))
        shadow.follow(sequence.tokens)
        shadow.most = most
        return shadow

    def _run(self, works: Seq[Work]) -> list[Work]:
        """Run a forward pass and keep its drafts; the works of the next one."""
        began = time.perf_counter()
        keys = noise_keys(works) if self._runner.takes_extra else None
        try:
            samples = sample(works, self._runner.run(works, keys), keys)
        except NoDistribution:
            return []
        rows = sum(work.count for work in works)
        if rows <= 2 * len(works):  # after a step whose drafts were all right, the last of them is run, too
            self.costs.add(rows, time.perf_counter() - began)
        following = []
        for work, sampled in zip(works, samples, strict=True):
            shadow = work.sequence
            assert isinstance(shadow, Shadow)
            shadow.computed += work.count
            for token in sampled.tokens:
                if token < self._vocab_size:
                    shadow.add(token)
            if shadow.pending and work.samples and len(shadow.draft_tokens) < shadow.most:
                following.append(Work(shadow, shadow.computed, 1, samples=True))
        return following


@contextmanager
def without_failing_source(speculation: Speculation) -> Iterator[None]:
    """Give up a source of drafts that fails inside: without it every text is the same."""
    try:
        yield
    except torch.AcceleratorError:
        raise
    except Exception as error:  # whatever a model may raise
        log.error("draft_model.failed", error=repr(error))
        speculation.source = None


def why_not_alike(model: str, draft_model: str) -> str | None:
    """Why the tokens of two checkpoint folders are not the same, as far as both have a tokenizer; None: they are."""
    vocabularies: list[dict[str, int]] = []
    for folder in (model, draft_model):
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError):
            return None
        vocabularies.append(tokenizer.get_vocab())
    one, other = vocabularies
    unlike = [token for token in one.keys() | other.keys() if one.get(token) != other.get(token)]
    return f"their vocabularies differ in {len(unlike)} tokens" if unlike else None
