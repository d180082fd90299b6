"""One sequence inside the engine, and its share of a step.

Mutable state without policy: the scheduler moves sequences between queues, the loop appends tokens. The invariant:
`tokens` only ever grows, and `computed` says how many of them have keys and values in the cache, so the work that is
left is the difference of the two. Both count a step that was launched and is not read yet (`overlap`): the token that
it chooses is below zero until then. Imports no torch: objects that hold tensors are known here by a protocol.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from backends.native.protocol.blocks import image_extra, split_keys
from backends.native.protocol.messages import Logprobs, Submit


class TokenHistory(Protocol):
    """Counts of a sequence's generated tokens, for penalties: `sampling.logits_processors.History`."""

    def update(self, tokens: list[int]) -> None:
        """Count the tokens that are new since the last call."""
        ...


class GrammarConstraint(Protocol):
    """The grammar that a sequence follows: `sampling.grammar_masks.Constraint`."""

    def leave(self) -> None:
        """Release the compiled grammar when the sequence ends."""
        ...


class StateSnapshots(Protocol):
    """Copies of recurrent state at block boundaries: `state.pool.StatePool`."""

    def resumable(self, keys: Seq[bytes]) -> int:
        """How many of the leading blocks with these keys can be skipped."""
        ...

    def save(self, sequence: Sequence, key: bytes, *, replace: bool) -> None:
        """Keep the state of a sequence whose last computed block has this key."""
        ...


class SwapSpace(Protocol):
    """Host memory for what preempted sequences had on an accelerator: `runner.swap_space.SwapSpace`."""

    @property
    def sequences(self) -> int:
        """How many sequences have something there."""
        ...

    @property
    def usage(self) -> float:
        """The share of it that is taken, 0 to 1."""
        ...

    def save(self, sequence: Sequence) -> None:
        """Copy what a sequence has computed, as far as there is room, before its blocks are released."""
        ...

    def restore(self, sequence: Sequence, found: int) -> int:
        """Copy what was saved of a sequence into its new blocks, of which the first `found` have theirs already.

        Returns:
            How many of its leading tokens are computed then; 0: nothing was copied.
        """
        ...

    def drop(self, sequence: Sequence) -> None:
        """Forget what was saved of a sequence, if anything."""
        ...


class StateSum(Protocol):
    """A sum of hidden states, [hidden_size] float32: a `torch.Tensor`."""

    def tolist(self) -> list[float]:
        """The numbers."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request.

    Attributes:
        connection: the worker's connection; (connection, `request.seq`) identifies the sequence outside the engine.
        arrival: rank among all sequences ever submitted.
        submitted, admitted: when it came to the engine, and first into the batch, on the monotonic clock; 0.0 before.
        virtual_start: its turn among the sequences of all flows (`FairClock`).
        salt: what sequences must have in common, besides tokens, to share cache blocks (the LoRA adapter's name).
        tokens: the prompt, then what was generated.
        computed: leading tokens whose keys and values are in `blocks`.
        stored: of these, those for which `blocks` hold all else that will be stored there (`mtp_drafts`).
        published: leading blocks that others may share.
        block_keys: prefix-cache keys of the leading full blocks, as far as they were needed.
        shared_blocks: leading blocks that were in the prefix cache when the sequence was admitted, with or without the
            recurrent state that is needed to continue behind them.
        cached_tokens: prompt tokens found in the prefix cache at the first admission; None before that.
        prompt_logprobs: collected over the prompt's chunks, returned with the first output.
        history: token counts for penalties; made by the sampler when it first needs them.
        hidden_sum: sum of the prompt's hidden states, if an embedding was requested (`pooling`).
        constraint: the grammar, if the request has one.
        held: whether the scheduler leaves the sequence out of steps for now.
        drafts: what its next tokens may be; the next step verifies them (`speculation`).
        forced: whether the grammar allows no other tokens than `drafts`.
    """

    connection: int
    request: Submit
    arrival: int
    salt: bytes = b""
    virtual_start: float = 0.0
    submitted: float = 0.0
    admitted: float = 0.0
    tokens: list[int] = field(init=False)
    prompt_length: int = field(init=False)
    computed: int = 0
    stored: int = sys.maxsize
    published: int = 0
    blocks: array[int] = field(default_factory=lambda: array("q"))
    block_keys: list[bytes] = field(default_factory=list)
    shared_blocks: int = 0
    cached_tokens: int | None = None
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    history: TokenHistory | None = None
    constraint: GrammarConstraint | None = None
    held: bool = False
    drafts: tuple[int, ...] = ()
    forced: bool = False
    hidden_sum: StateSum | None = None

    def __post_init__(self) -> None:
        # What another engine has generated is as if this one had, and had then preempted the sequence.
        self.tokens = [*self.request.prompt, *self.request.received]
        self.prompt_length = len(self.request.prompt)
        self.block_keys = split_keys(self.request.block_keys)

    def block_extra(self, begin: int, end: int) -> bytes:
        """What tokens `begin` to `end` stand for besides their ids."""
        return image_extra(self.request.features, begin, end)

    @property
    def order(self) -> tuple[int, float, int]:
        """Sort key of both queues: greater priority first, then the earlier virtual start, then earlier arrival."""
        return (-self.request.priority, self.virtual_start, self.arrival)

    @property
    def pending(self) -> int:
        """Tokens that are not computed yet."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def longest(self) -> int:
        """The most tokens that the sequence can come to hold."""
        return len(self.request.prompt) + self.request.max_new_tokens

    def full_blocks(self, size: int) -> int:
        """Blocks of `size` tokens that are full before the last token, which is always run."""
        return (len(self.tokens) - 1) // size

    @property
    def scores_prompt(self) -> bool:
        """Whether every prompt token must be run, because prompt logprobs or an embedding are still to be computed."""
        return (self.request.prompt_logprobs >= 0 or self.request.pool) and self.generated == 0

    def forget_computed(self) -> None:
        """Start over from the tokens alone. The caller has released the blocks."""
        self.blocks = array("q")
        self.computed = self.published = 0
        # What was collected from chunks is collected again with them; kept, it would be counted twice.
        self.prompt_logprobs.clear()
        self.hidden_sum = None


# `gc=False`: a step makes one for each sequence; none is part of a reference cycle, so the collector need not visit it.
class Work(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Tokens `start` to `start + count` of a sequence, to be run in one step.

    `samples` is whether they include its last token, so that the next token is chosen in this step. The last of the
    tokens may be `drafts`, which the sequence does not have yet; a token is then chosen after each of them, too.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def tokens(self) -> Seq[int]:
        """The token ids to run."""
        tokens = self.sequence.tokens
        if self.drafts:
            return (*tokens[self.start :], *self.drafts)
        # A prompt that is run whole is returned without a copy.
        return tokens if self.count == len(tokens) else tokens[self.start : self.start + self.count]

    @property
    def wanted(self) -> int:
        """How many rows of logits the step must return, counted from the last of the tokens."""
        if self.count == 1 and self.samples:  # decode: the common case, answered without looking at the request
            return 1
        if self.drafts:
            return 1 + len(self.drafts)
        return self.count if self.sequence.scores_prompt else int(self.samples)

    @property
    def without_drafts(self) -> Work:
        """The same without its drafts."""
        return Work(self.sequence, self.start, self.count - len(self.drafts), self.samples)
