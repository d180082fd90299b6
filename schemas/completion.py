"""Complete answers: what a stream of events (`schemas.ir`) folds to."""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.ir import FinishReason, Token, TokenIds, ToolCall, Usage


class Choice(msgspec.Struct, frozen=True):
    """One complete choice: the fold of its deltas.

    `order` is the order of its content, for protocols whose answers are made of blocks: (kind, characters) for
    reasoning, text and refusal, and ("calls", 0) at the place of the tool calls. () is the usual order: reasoning,
    text, refusal, calls.
    """

    index: int
    reason: FinishReason
    text: str = ""
    tokens: tuple[Token, ...] = ()
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    generated: int | None = None
    stop: str | None = None
    seed: int | None = None
    ids: tuple[int, ...] = ()  # as in `schemas.ir.Delta.ids`
    # Lengths and not texts, so that every text exists once; see `adapters.fold.blocks`.
    order: tuple[tuple[Literal["reasoning", "text", "refusal", "calls"], int], ...] = ()


class Timings(msgspec.Struct, frozen=True):
    """Seconds by a monotonic clock: until the first event, and until the last."""

    first_event: float
    total: float


class Completion(msgspec.Struct, frozen=True):
    """A complete answer: the fold of an event stream. `relayed` is the data of its `Relayed` event, if any."""

    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    # As in `schemas.ir.Started.prompts`.
    prompts: tuple[tuple[Token, ...], ...] = ()
    timings: Timings | None = None
    relayed: bytes | None = None
    token_ids: TokenIds = "model"
