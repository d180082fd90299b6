"""The demo model's configuration and its structured initialization.

Plain transformers classes, so that their ``generate`` is the reference for the engine. The structured start
writes a working copy circuit (an "induction head", Olsson et al. 2022) into the first two layers: from a
random start, copying is not learned within minutes, and repeating and tool arguments depend on it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from tools.demo_model.samples.image_chats import IMAGE_SIZE
from tools.demo_model.tokenizer import CONTEXT_LENGTH, END, IMAGE, PAD, VOCABULARY_SIZE

PATCH_SIZE = 8
GRID = IMAGE_SIZE // PATCH_SIZE
IMAGE_TOKENS = GRID * GRID
"""Image tokens per image: 36."""

_CONSTANT = 0.3  # value of embedding channel 0 of every token: what a position-only query is made from


def build_model(seed: int) -> LlavaForConditionalGeneration:
    """Build the untrained model with its structured start: 2.3 M parameters, float32."""
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(_config())
    with torch.no_grad():
        _write_constant_channel(model)
        _write_previous_token_head(model)
        _write_positions(model)
    return model


def _config() -> LlavaConfig:
    vision = CLIPVisionConfig(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        projection_dim=128,
    )
    text = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        image_seq_length=IMAGE_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=END,
    )


def _write_constant_channel(model: LlavaForConditionalGeneration) -> None:
    model.model.language_model.embed_tokens.weight[:, 0] = _CONSTANT
    model.model.multi_modal_projector.linear_2.bias[0] = _CONSTANT


def _write_previous_token_head(model: LlavaForConditionalGeneration) -> None:
    """Layer 0 finds the previous token by position; layer 1 finds what followed an equal token, and copies it.

    RoPE turns frequency i of a key by one more step than the query's: writing the phase of one step into the
    key makes the product peak one position back. The matching head leaves the fast frequencies out, so that
    its score hardly depends on the distance.
    """
    language = model.model.language_model
    width, head = language.config.hidden_size, language.config.head_dim
    half, fast = head // 2, 6
    frequencies = 10_000.0 ** (-torch.arange(half) / half)
    first, second = language.layers[0].self_attn, language.layers[1].self_attn

    query, key = torch.zeros(head), torch.zeros(head)
    query[:fast] = 1.0
    key[:fast], key[half : half + fast] = torch.cos(frequencies[:fast]), torch.sin(frequencies[:fast])
    variance = (0.02**2 * (width - 1) + _CONSTANT**2) / width  # of an embedding: what RMSNorm divides by
    gain = math.sqrt(8 * math.sqrt(head)) / (_CONSTANT / math.sqrt(variance))
    first.q_proj.weight[:head] *= 0.1
    first.k_proj.weight[:head] *= 0.1
    first.q_proj.weight[:head, 0] = gain * query
    first.k_proj.weight[:head, 0] = gain * key
    digest = torch.randn(head, width) / math.sqrt(width)
    digest[:, 0] = 0
    slot = _orthonormal(width, head)  # where in the residual stream the previous token's digest is written
    first.v_proj.weight[:head] = digest
    first.o_proj.weight[:, :head] = 0.12 * slot

    slow = torch.ones(head, 1)
    slow[:fast] = slow[half : half + fast] = 0
    copied = _orthonormal(width, head)
    second.q_proj.weight[:head] = 3 * slow * digest
    second.k_proj.weight[:head] = 3 * slow * slot.T
    second.v_proj.weight[:head] = copied.T
    second.o_proj.weight[:, :head] = 0.1 * copied


def _write_positions(model: LlavaForConditionalGeneration) -> None:
    """Starts the tower's patch positions as 2-D sine and cosine; position 0 is the class token's."""
    table = model.model.vision_tower.embeddings.position_embedding.weight
    quarter = table.shape[1] // 4
    frequencies = 100.0 ** (-torch.arange(quarter) / quarter)
    rows, columns = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
    angles = [axis.reshape(-1, 1) * frequencies for axis in (columns, rows)]
    table[1:] = 0.5 * torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)


def _orthonormal(rows: int, columns: int) -> Tensor:
    """Random orthonormal columns that leave the constant channel alone."""
    basis: Tensor = torch.linalg.qr(torch.randn(rows, columns))[0]
    basis[0] = 0
    return basis
