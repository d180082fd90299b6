"""Requests to score pairs of texts, to classify texts, or for vectors other than embeddings, and their answers, in no
protocol's words.

They are read from a `schemas.origin.Relay` once it is known that the target is a model here and no remote.
"""

from __future__ import annotations

import msgspec

from schemas.ir import TextPrompt, TokensPrompt, Usage
from schemas.origin import Origin, Scoring


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a number per pair of texts, for the numbers of all labels per text (`task` "classify"), or for
    other vectors of each text ("sparse", "tokens").

    `truncate_prompt_tokens`: longer inputs are cut to so many tokens, as the tokenizer cuts them, -1: to the context;
    None: they are refused. `activation` False: the model's own numbers, without the function that it ends with.
    `instruction`: what makes a document relevant, or the name of the prompt before each text; None: the model's own.
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
    """The numbers of each pair or text, in order: one, or one for each of the model's `labels`.

    `rows`: of each text instead the vectors of its tokens, or for a sparse vector a pair for each component that is not
    0: its index, which is a token's id, and its value, in the order of the indices.
    """

    model: str
    values: tuple[tuple[float, ...], ...]
    usage: Usage
    labels: tuple[str, ...] = ()
    rows: tuple[tuple[tuple[float, ...], ...], ...] = ()
