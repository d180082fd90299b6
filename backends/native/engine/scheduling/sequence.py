"""One sequence inside the engine, and a step's share of work on it.

Mutable state, no behaviour that decides anything: the scheduler moves sequences, the loop appends tokens. The one
thing to know: `tokens` only ever grows, and `computed` says how many of them have keys and values in the cache, so
everything still to do is the difference of the two. Imports no torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import msgspec

from backends.native.protocol.messages import Logprobs, Submit


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request.

    Attributes:
        connection: whose it is; with `request.seq` its name outside.
        arrival: rank among all sequences ever submitted.
        salt: what its cache blocks must share besides tokens to be reused (a LoRA adapter).
        tokens: the prompt, then what was generated.
        computed: leading tokens whose keys and values are in `blocks`.
        block_keys: names of its leading full blocks in the prefix cache, as far as they were needed.
        cached_tokens: prompt tokens found in the prefix cache when it was first admitted; None before that.
        prompt_logprobs: collected over the prompt's chunks until the first output takes them along.
        history: what the sampler remembers of its tokens; the sampler's own.
        hidden_sum: its prompt's hidden states added up (`pooling`), if its vector is wanted.
        constraint: its grammar (`grammar.Constraint`), if it has one.
        held: whether it is to be left out of steps for now.
    """

    connection: int
    request: Submit
    arrival: int
    salt: bytes = b""
    tokens: list[int] = field(init=False)
    prompt_length: int = field(init=False)
    computed: int = 0
    blocks: array[int] = field(default_factory=lambda: array("q"))
    block_keys: list[bytes] = field(default_factory=list)
    cached_tokens: int | None = None
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    history: Any = None
    constraint: Any = None
    held: bool = False
    hidden_sum: Any = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.prompt_length = len(self.tokens)

    def block_extra(self, begin: int, end: int) -> bytes:
        """What the tokens from `begin` to `end` mean besides their ids: which pictures they stand for, and which parts.

        Without it two pictures with the same placeholder tokens would share cache blocks.
        """
        touching = (f for f in self.request.features if f.offset < end and f.offset + f.length > begin)
        return b"".join(f.identifier + (f.offset - begin).to_bytes(8, "big", signed=True) for f in touching)

    @property
    def order(self) -> tuple[int, int]:
        """Sorts before another sequence if it goes first: greater priority, then earlier arrival."""
        return (-self.request.priority, self.arrival)

    @property
    def pending(self) -> int:
        """Tokens not computed yet."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def longest(self) -> int:
        """The most tokens it can come to hold."""
        return len(self.request.prompt) + self.request.max_new_tokens

    @property
    def scores_prompt(self) -> bool:
        """Whether logprobs of its prompt or its vector are still wanted, for which every prompt token must be run."""
        return (self.request.prompt_logprobs >= 0 or self.request.pool) and self.generated == 0

    def forget_computed(self) -> None:
        """Start over from the tokens alone; its blocks are somebody else's already."""
        self.blocks = array("q")
        self.computed = 0
        self.prompt_logprobs.clear()
        self.hidden_sum = None


class Work(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Tokens `start` to `start + count` of a sequence, to be run in one step.

    `samples` says whether they reach its last token, so that the next one can be chosen.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool

    @property
    def tokens(self) -> Seq[int]:
        """The tokens to run."""
        tokens = self.sequence.tokens
        return tokens if self.count == len(tokens) else tokens[self.start : self.start + self.count]

    @property
    def wanted(self) -> int:
        """How many of its last tokens' logits are wanted."""
        if self.count == 1 and self.samples:  # decode, told quickly
            return 1
        return self.count if self.sequence.scores_prompt else int(self.samples)
