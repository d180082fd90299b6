"""What a native model supports, as far as its folder and its engine tell."""

from __future__ import annotations

from msgspec.structs import replace

from backends.base import Capabilities, Feature
from backends.native.classification import Head
from backends.native.protocol.messages import Ready, SamplingParams
from backends.native.scoring import scoring_of
from backends.native.sentence_transformers import Recipe
from backends.native.text.codec import TextCodec

_FEATURES = frozenset(
    {
        Feature.TOKEN_PROMPTS,
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.BEST_OF,
        Feature.TRUNCATION,
        # Those of sampling that the engine has a parameter for, under the same name.
        *(feature for feature in Feature if feature in SamplingParams.__struct_fields__),
    }
)


def capabilities(
    text: TextCodec, ready: Ready, head: Head | None, recipe: Recipe, *, grammars: bool, lora_folder: bool
) -> Capabilities:
    """What a loaded model supports.

    Args:
        text: its tokenizer and chat template.
        ready: what its engine announced.
        head: its classification head, if it has one.
        recipe: how its vectors are made.
        grammars: whether its tokenizer allows grammars.
        lora_folder: whether LoRA adapters may be loaded while it serves.
    """
    optional = {
        Feature.CHAT: text.has_template,
        Feature.TEMPLATE_OPTIONS: text.has_template,
        Feature.GRAMMAR: grammars,
        Feature.BAD_WORDS: grammars,
        Feature.TOOLS: text.can_call,
        Feature.IMAGES: ready.images,
        Feature.LORA: bool(ready.lora_adapters),
        Feature.SUFFIX: text.can_infill,
    }
    return Capabilities(
        features=_FEATURES | {feature for feature, supported in optional.items() if supported},
        generates=ready.generates,
        embeddings=ready.embedding_size > 0 and recipe.splade is None and recipe.late is None,
        scoring=scoring_of(ready, head, recipe),
        tokenize=True,
        context_length=ready.context_length,
        vocab_size=ready.vocab_size,
        tokenizer=text.vocabulary.digest,
        tokenizer_info=text.info,
        dtype=ready.dtype,
        device=ready.device,
        lora_adapters=ready.lora_adapters,
        models_are_loras=lora_folder or bool(ready.lora_adapters),
    )


def with_lora_adapters(known: Capabilities, names: tuple[str, ...]) -> Capabilities:
    """The capabilities with other LoRA adapters."""
    others = known.features - {Feature.LORA}
    return replace(known, lora_adapters=names, features=others | {Feature.LORA} if names else others)
