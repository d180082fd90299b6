"""Small wide-init checkpoints of unregistered families, saved by their own processors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.backends.native.multimodal.tiny import widen

WORDS = 70
TEXT = {"vocab_size": 128, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION |= {"image_size": 32, "patch_size": 8}
MROPE = {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 2, 2]}
SQUARE = {"height": 32, "width": 32}


def _needs(processor: type) -> None:
    """transformers 5.17 has some processors on Pillow only beside torchvision; its top level then has a stand-in."""
    if getattr(getattr(transformers, processor.__name__), "is_dummy", False):
        pytest.skip(f"transformers {transformers.__version__} has {processor.__name__} only with torchvision")


def tokenizer(*special: str, **named: str) -> PreTrainedTokenizerFast:
    """Words w0, w1, ..., and special tokens from `WORDS` on."""
    vocabulary = {f"w{id}": id for id in range(WORDS)} | {word: WORDS + at for at, word in enumerate(special)}
    words = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    extra: Any = named or list(special)
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", extra_special_tokens=extra)


def _save(folder: Path, config: Any, *parts: Any) -> Path:
    torch.manual_seed(3)
    widen(AutoModelForImageTextToText.from_config(config)).save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)
    return folder


def save_idefics3(folder: Path) -> Path:
    """Images are split into tiles, with row and column tokens between their embeddings."""
    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    names = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "\n", *tiles)
    tokens = tokenizer(*names)
    text = {"model_type": "llama", **TEXT}
    config = AutoConfig.for_model(
        "idefics3", text_config=text, vision_config={**VISION}, scale_factor=2, image_token_id=WORDS
    )
    _needs(Idefics3ImageProcessorPil)
    images = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    return _save(folder, config, transformers.Idefics3Processor(images, tokens, image_seq_len=4))


def save_llava_next(folder: Path) -> Path:
    """Images take as many tokens as fit their shape, with a newline embedding after each row."""
    tokens, pins = tokenizer("<image>"), [[32, 64], [64, 32], [64, 64]]
    vision = {"model_type": "clip_vision_model", **VISION, "projection_dim": 16}
    config = AutoConfig.for_model(
        "llava_next",
        text_config={"model_type": "llama", **TEXT},
        vision_config=vision,
        image_token_index=WORDS,
        image_grid_pinpoints=pins,
    )
    images = LlavaNextImageProcessorPil(size={"shortest_edge": 32}, crop_size=SQUARE, image_grid_pinpoints=pins)
    strategy = {"vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return _save(folder, config, transformers.LlavaNextProcessor(images, tokens, patch_size=8, **strategy))


def save_glm4v(folder: Path) -> Path:
    """M-RoPE positions; its processor has a part for videos, too."""
    tokens = tokenizer("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>")
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 8, "image_size": 32}
    config = AutoConfig.for_model(
        "glm4v",
        text_config={**TEXT, "rope_parameters": MROPE | {"partial_rotary_factor": 1.0}},
        vision_config=vision | {"out_hidden_size": 48},
        image_token_id=WORDS,
        video_token_id=WORDS + 1,
        image_start_token_id=WORDS + 2,
        image_end_token_id=WORDS + 3,
    )
    images = Glm4vImageProcessorPil(patch_size=8, size={"shortest_edge": 512, "longest_edge": 8192})
    return _save(folder, config, tokens, images)


def save_gemma3(folder: Path) -> Path:
    """Tokens of an image attend to each other in both directions."""
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    config = AutoConfig.for_model(
        "gemma3",
        text_config={**TEXT, "head_dim": 12, "sliding_window": 16},
        vision_config={**VISION},
        mm_tokens_per_image=4,
        boi_token_index=WORDS,
        eoi_token_index=WORDS + 1,
        image_token_index=WORDS + 2,
    )
    tokens, images = tokenizer(*named.values(), **named), Gemma3ImageProcessorPil(size=SQUARE)
    return _save(folder, config, transformers.Gemma3Processor(images, tokens, image_seq_length=4))


def save_paligemma(folder: Path) -> Path:
    """An image and the question attend to each other in both directions."""
    tokens = tokenizer("<image>", image_token="<image>")
    tokens.add_special_tokens({"bos_token": "w1"})
    text = {"model_type": "gemma", **TEXT, "head_dim": 12}
    config = AutoConfig.for_model(
        "paligemma", text_config=text, vision_config={**VISION}, image_token_index=WORDS, projection_dim=48
    )
    images = SiglipImageProcessorPil(size=SQUARE)
    images.image_seq_length = 16
    return _save(folder, config, tokens, images)


def save_pixtral(folder: Path) -> Path:
    """LLaVA's class with a tower for images of any size; a token for each patch."""
    tokens = tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    config = AutoConfig.for_model(
        "llava",
        text_config={"model_type": "mistral", **TEXT, "head_dim": 12},
        vision_config={"model_type": "pixtral", **VISION, "image_size": 64, "head_dim": 8},
        image_token_index=WORDS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    images = PixtralImageProcessorPil(size={"longest_edge": 32}, patch_size={"height": 8, "width": 8})
    return _save(folder, config, tokens, images)


def save_unregistered(folder: Path) -> Path:
    """A whole prompt attends in both directions, and no class is registered that says so."""
    file = save_paligemma(folder) / "config.json"
    file.write_text(file.read_text().replace("PaliGemmaForConditionalGeneration", "OtherForConditionalGeneration"))
    return folder


def save_qwen3_vl(folder: Path) -> Path:
    """An image's features are added to several layers (DeepStack)."""
    tokens = tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 8}
    vision |= {"out_hidden_size": 48, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    config = AutoConfig.for_model(
        "qwen3_vl",
        text_config={**TEXT, "head_dim": 12, "rope_parameters": MROPE},
        vision_config=vision,
        image_token_id=WORDS,
        video_token_id=WORDS + 1,
        vision_start_token_id=WORDS + 2,
        vision_end_token_id=WORDS + 3,
    )
    images = Qwen2VLImageProcessorPil(patch_size=8, size={"shortest_edge": 256, "longest_edge": 4096})
    return _save(folder, config, tokens, images)


def save_mistral3(folder: Path) -> Path:
    """Images are rows of tokens, with a token at the end of each row and at the end of the image."""
    tokens = tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    config = AutoConfig.for_model(
        "mistral3",
        text_config={"model_type": "mistral", **TEXT, "head_dim": 12},
        vision_config={"model_type": "pixtral", **VISION, "image_size": 64, "head_dim": 8},
        image_token_index=WORDS,
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    images = PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 8, "width": 8})
    return _save(folder, config, tokens, images)


def save_smolvlm(folder: Path) -> Path:
    """As Idefics3; the processor needs the package num2words."""
    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokens = tokenizer("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "\n\n", *tiles)
    text = {"model_type": "llama", **TEXT}
    config = AutoConfig.for_model(
        "smolvlm", text_config=text, vision_config={**VISION}, scale_factor=2, image_token_id=WORDS
    )
    _needs(SmolVLMImageProcessorPil)
    images = SmolVLMImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    (_save(folder, config, tokens, images) / "processor_config.json").write_text('{"image_seq_len": 4}')
    return folder


SERVED: Sequence[Callable[[Path], Path]] = (
    save_idefics3,
    save_llava_next,
    save_glm4v,
    save_qwen3_vl,
    save_mistral3,
    save_pixtral,
    save_gemma3,
    save_paligemma,
)
WITH_PACKAGE = {save_smolvlm: "num2words"}
"""Families whose processor in transformers needs a package that neither is required nor comes with another."""
