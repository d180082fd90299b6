"""Requests to score pairs of texts or to classify texts, and their answers, in no protocol's words.

They are read from a `schemas.origin.Relay` once it is known that the target is a model here and no remote.
"""

from __future__ import annotations

import msgspec

from schemas.ir import TextPrompt, TokensPrompt, Usage
from schemas.origin import Origin, Scoring


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a number per pair of texts, or for the numbers of all labels per text (`task` "classify").

    `truncate_prompt_tokens`: longer inputs are cut to so many tokens, as the tokenizer cuts them, -1: to the context;
    None: they are refused. `activation` False: the model's own numbers, without the function that it ends with.
    `instruction`: what makes a document relevant; None: the model's own.
    """

    id: str
    model: str
    task: Scoring
    pairs: tuple[tuple[str, str], ...] = ()
    texts: tuple[TextPrompt | TokensPrompt, ...] = ()
    truncate_prompt_tokens: int | None = None
    activation: bool = True
    instruction: str | None = None
    unknown: tuple[str, ...] = ()
    origin: Origin


class Scores(msgspec.Struct, frozen=True):
    """The numbers of each pair or text, in order: one, or one for each of the model's `labels`."""

    model: str
    values: tuple[tuple[float, ...], ...]
    usage: Usage
    labels: tuple[str, ...] = ()
