"""What a grammar allows at each token of a training answer: the same masks that the engine lays over its logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from backends.native.grammar.grammar import Grammars
from backends.native.tools.families.hermes import HERMES
from backends.native.tools.grammar import answer_grammar
from backends.native.tools.tags import Tags
from schemas.ir import Generate
from tools.demo_model.tokenizer import END, VOCABULARY_SIZE

WORDS = VOCABULARY_SIZE // 32
"""32-bit words of a mask, the lowest bit first."""

Mask = NDArray[np.int32]


class AnswerMasks:
    """Masks of the grammars of requests.

    Args:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        grammars = Grammars.of(tokenizer, VOCABULARY_SIZE, (END,))
        if grammars is None:
            raise ValueError("the tokenizer does not allow for grammars")
        self._grammars = grammars
        self._tags = Tags(grammars.tags)

    def choices(self, request: Generate, answer: Sequence[int]) -> dict[int, Mask]:
        """The masks of those tokens at which the grammar leaves a choice, by their place in ``answer``.

        Raises:
            ValueError: the request has no grammar, or its grammar does not allow the answer.
        """
        source = answer_grammar(request, HERMES, self._tags, text_tokens=self._grammars.text_tags)
        if source is None:
            raise ValueError("no grammar holds the answer")
        matcher = self._grammars.compile(source)
        masks: dict[int, Mask] = {}
        place = 0
        while place < len(answer) and not matcher.is_stopped():
            forced = matcher.compute_ff_tokens()
            if not forced:
                masks[place] = mask = np.empty(WORDS, np.int32)
                matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            taken = forced or [answer[place]]
            given = list(answer[place : place + len(taken)])
            if given != taken or not matcher.consume_tokens(taken):
                why = matcher.get_error() or f"it has {given}, and {taken} is forced"
                raise ValueError(f"the grammar does not allow token {place} of the answer: {why}")
            place += len(taken)
        return masks
