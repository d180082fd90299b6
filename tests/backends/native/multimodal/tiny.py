"""Small wide-init LLaVA checkpoints on disk, and an engine's logits for a prompt with images."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, CLIPImageProcessor, PreTrainedTokenizerFast
from transformers.models.fuyu.image_processing_pil_fuyu import FuyuImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from backends.images import DecodedImage
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.runner.embedder import Embedder
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.sequence import Sequence as EngineSequence
from backends.native.engine.scheduling.sequence import Work
from backends.native.engine.scheduling.unchunked import image_spans, unsplit
from backends.native.multimodal.inputs import ImageItem, MultiModalInputs
from backends.native.multimodal.processing import BaseMultiModalProcessor
from backends.native.multimodal.prompts import load_processor
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.protocol.messages import Feature, Submit

BLOCK = 4
IMAGE = 90


def widen(model: Any) -> Any:
    """Weights so wide that logits depend on everything; otherwise a wrong image would not be noticed."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.5 / parameter.shape[-1] ** 0.5)
    return model.eval()


def save_llava(folder: Path, model_type: str = "llava", layers: int | list[int] = -1) -> Path:
    text = {"model_type": "llama", "vocab_size": 96, "hidden_size": 48, "intermediate_size": 64}
    text |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    vision |= {"num_attention_heads": 4, "image_size": 24, "patch_size": 8, "projection_dim": 16}
    config = AutoConfig.for_model(
        model_type, text_config=text, vision_config=vision, image_token_index=IMAGE, vision_feature_layer=layers
    )
    torch.manual_seed(3)
    widen(AutoModelForImageTextToText.from_config(config)).save_pretrained(folder)
    save_words(folder, {"<image>": IMAGE})
    size = {"height": 24, "width": 24}
    CLIPImageProcessor(size=size, crop_size=size, do_center_crop=False).save_pretrained(folder)
    return folder


def save_qwen(folder: Path, version: str) -> Path:
    text = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [2, 2, 2]}}
    vision = {"depth": 2, "num_heads": 4, "patch_size": 8}
    if version == "qwen2_vl":
        vision |= {"embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 48, "window_size": 32}
        vision |= {"fullatt_block_indexes": [1]}
    config = AutoConfig.for_model(
        version,
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        vision_start_token_id=91,
        vision_end_token_id=92,
        video_token_id=93,
    )
    torch.manual_seed(3)
    widen(AutoModelForImageTextToText.from_config(config)).save_pretrained(folder)
    save_words(folder, {"<|vision_start|>": 91, "<|image_pad|>": IMAGE, "<|vision_end|>": 92})
    Qwen2VLImageProcessorPil(patch_size=8, size={"shortest_edge": 256, "longest_edge": 4096}).save_pretrained(folder)
    return folder


def save_fuyu(folder: Path) -> Path:
    text = {"model_type": "persimmon", "vocab_size": 96, "hidden_size": 48, "intermediate_size": 64}
    text |= {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256, "bos_token_id": 1}
    config = AutoConfig.for_model("fuyu", text_config=text, patch_size=10, image_token_id=IMAGE)
    torch.manual_seed(3)
    widen(AutoModelForImageTextToText.from_config(config)).save_pretrained(folder)
    sides = {"size": {"height": 60, "width": 90}, "patch_size": {"height": 10, "width": 10}}
    FuyuImageProcessorPil(**sides).save_pretrained(folder)
    save_words(folder, {"|SPEAKER|": IMAGE, "|NEWLINE|": 94, "<0x04>": 95})
    return folder


def save_words(folder: Path, special: dict[str, int]) -> None:
    """A tokenizer of the words "w0" to "w95", with other names for some of them."""
    named = {"<s>": 1} | special
    vocabulary = {f"w{id}": id for id in range(96) if id not in named.values()} | named
    words = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="w0")
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.save_pretrained(folder)


class Checkpoint:
    """A checkpoint folder, transformers' model of it, and the engine's parts."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
        self.processor: BaseMultiModalProcessor[Any] = load_processor(str(folder))
        self.wrapper = MULTIMODAL_REGISTRY.lookup(self.model.config).wrap(self.model)
        if self.model.config.model_type == "gemma3":
            self.wrapper.unchunked = "image"  # as the check at load finds

    def item(self, seed: int, width: int = 30, height: int = 20) -> ImageItem:
        """A random processed image."""
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
        return self.processor.process(DecodedImage(width, height, bytearray(pixels), f"image {seed}".encode()))

    def plain(self, inputs: MultiModalInputs, items: Sequence[ImageItem]) -> Tensor:
        """The logits of every position by transformers' forward: [tokens, vocabulary]."""
        self.model.get_decoder().set_attn_implementation("eager")
        arrays = self.arrays(items) | self.kinds(inputs)
        with torch.inference_mode():
            logits: Tensor = self.model(torch.tensor([inputs.prompt_token_ids]), **arrays, use_cache=False).logits[0]
        return logits

    def arrays(self, items: Sequence[ImageItem]) -> dict[str, Tensor]:
        """The images, as arguments of transformers' forward."""
        names = items[0].arrays if items else ()
        found = {name: torch.cat([torch.from_numpy(np.array(item.arrays[name])) for item in items]) for name in names}
        found.pop("grid", None)  # ours, for Fuyu
        taken = signature(self.model.forward).parameters
        if found and "image_patches" in taken and "pixel_values" not in taken:
            pytest.skip("Fuyu's own forward of transformers 5.17 refuses images as many as their tokens")
        return found

    def kinds(self, inputs: MultiModalInputs) -> dict[str, Tensor]:
        """Which tokens stand for images, as an argument of models that take it."""
        kinds = torch.zeros(1, len(inputs.prompt_token_ids), dtype=torch.int)
        name = {"gemma3": "token_type_ids", "paligemma": "token_type_ids"}.get(self.model.config.model_type)
        if name is None and hasattr(self.model.model, "get_rope_index") and inputs.features:
            name = "mm_token_type_ids"
        # PaliGemma's say which tokens belong to the answer: none.
        for feature in inputs.features if self.model.config.model_type != "paligemma" else ():
            is_embed = torch.tensor(list(feature.is_embed or b"\1" * feature.length), dtype=torch.int)
            kinds[0, feature.offset : feature.offset + feature.length] = is_embed
        return {} if name is None else {name: kinds}

    def packed(
        self, prompts: Sequence[MultiModalInputs], chunk: int = 1000, embedder: Embedder | None = None
    ) -> list[Tensor]:
        """The same by the engine's runner: all prompts at once, `chunk` tokens of each per step."""
        blocks_each = -(-max(len(prompt.prompt_token_ids) for prompt in prompts) // BLOCK)
        cache = KVCache(blocks_each * len(prompts), BLOCK)
        runner = PackedRunner(self.model, cache, embedder=embedder or Embedder(self.wrapper, 1000))
        sequences = []
        for index, prompt in enumerate(prompts):
            submit = Submit(index, prompt.prompt_token_ids, 1, prompt_logprobs=0, features=prompt.features)
            sequence = EngineSequence(0, submit, index)
            sequence.blocks = list(range(index * blocks_each, (index + 1) * blocks_each))
            sequences.append(sequence)
        return _run(runner, sequences, chunk)


def _run(runner: PackedRunner, sequences: list[EngineSequence], chunk: int) -> list[Tensor]:
    logits: list[list[Tensor]] = [[] for _ in sequences]
    while any(sequence.pending for sequence in sequences):
        works = [_work(runner, each, chunk) for each in sequences if each.pending]
        with torch.inference_mode():
            rows = runner.run(works).split([work.wanted for work in works])
        for work, found in zip(works, rows, strict=True):
            logits[work.sequence.arrival].append(found)
            work.sequence.computed += work.count
    return [torch.cat(found) for found in logits]


def _work(runner: PackedRunner, sequence: EngineSequence, chunk: int) -> Work:
    """About `chunk` tokens, as the scheduler would cut them."""
    start, count = sequence.computed, min(chunk, sequence.pending)
    if runner.unchunked == "image":
        count = unsplit(image_spans(sequence.request.features), start, count, sequence.pending)
    elif runner.unchunked == "prompt":
        count = sequence.pending
    return Work(sequence, start, count, samples=count == sequence.pending)


def mutated(feature: Feature, **fields: Any) -> Feature:
    import msgspec

    return msgspec.structs.replace(feature, **fields)
