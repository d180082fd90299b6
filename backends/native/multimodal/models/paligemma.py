"""PaliGemma: images, then a question, all of which see each other; only the answer is causal."""

from __future__ import annotations

from collections.abc import Sequence

from backends.native.multimodal.models.generic import (
    GenericDummyInputsBuilder,
    GenericModel,
    GenericMultiModalProcessor,
    GenericProcessingInfo,
)
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.protocol.messages import Unchunked


class PaliGemmaMultiModalProcessor(GenericMultiModalProcessor):
    """Lays a prompt out as transformers' `PaliGemmaProcessor` does: images, the first token, the question, a line end.

    Text before the last image stays where it is.
    """

    def _apply_hf_processor_tokens_only(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        tokenizer, image = self.info.get_tokenizer(), self.info.image_token_id
        ids, first = list(prompt_ids), tokenizer.bos_token_id
        # The tokenizer has put it before the images.
        if ids and ids[0] == first:
            del ids[0]
        last = len(ids) - ids[::-1].index(image) if image in ids else 0
        if ids[last : last + 1] != [first]:
            ids.insert(last, first)
        end = self.info.encode("\n")
        return ids if ids[-len(end) :] == end else [*ids, *end]


@MULTIMODAL_REGISTRY.register_processor(
    PaliGemmaMultiModalProcessor, info=GenericProcessingInfo, dummy_inputs=GenericDummyInputsBuilder
)
class PaliGemmaForConditionalGeneration(GenericModel):
    """Wraps transformers' class of the same name."""

    unchunked: Unchunked = "prompt"
