"""Attention modules of transformers that do not call the attention interface, or do not take positions from outside.

In a packed step they must attend to pages, and a token's position is not its place in the pack. `adapt_attention` gives
such modules another forward for steps, by the least that does it: another function for their scores, a forward of a few
lines, or positions. Outside of a step they are what they were.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from backends.native.engine.attention.interface import NAME, attend, step_metadata

Forward = Callable[..., Any]

_MARK = "interlingua_adapted"


def adapt_attention(model: Any) -> None:
    """Have the modules of `model` that need it run in packed steps, in place."""
    for index, module in enumerate(model.modules()):
        if hasattr(module, _MARK):
            continue
        kind = type(module).__name__
        if hasattr(module, "warn_if_padding_and_no_attention_mask"):
            # It looks for padding among the tokens, for which an accelerator would be waited for in each step.
            _replace(module, "warn_if_padding_and_no_attention_mask", lambda *_, **__: None)
        if module is model and any(type(each).__name__ in _SCORES for each in model.modules()):
            _replace(model, "forward", _without_masks)
        if kind in _SCORES:
            _replace(module, "_attn", partial(_attend_heads, _SCORES[kind]))
            if not hasattr(module, "layer_idx"):
                module.layer_idx = getattr(module, "layer_id", index)
        elif kind in _FORWARDS:
            _replace(module, "forward", _FORWARDS[kind])
        elif hasattr(module, "create_position_ids_from_input_ids"):
            module.position_embeddings.register_forward_pre_hook(_after_padding)
            setattr(module, _MARK, True)
        elif list(inspect.signature(module.forward).parameters)[1:3] == ["past_key_values_length", "position_ids"]:
            _replace(module, "forward", _embed_positions)


def _replace(module: Any, name: str, adapted: Forward) -> None:
    """Put `adapted`, called with the module and its own method before the arguments, in place of a method in steps."""
    own = getattr(module, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs) if step_metadata() is None else adapted(module, own, *args, **kwargs)

    setattr(module, name, method)
    setattr(module, _MARK, True)


def _without_masks(module: Any, own: Forward, *args: Any, **kwargs: Any) -> Any:
    """Have no mask made, as if the attention had an interface: nobody reads it, and an accelerator waits for it."""
    config = module.config
    before, config._attn_implementation = config._attn_implementation, NAME  # noqa: SLF001
    try:
        return own(*args, **kwargs)
    finally:
        config._attn_implementation = before  # noqa: SLF001


def _attend_heads(
    options: Callable[[Any], dict[str, Any]],
    module: Any,
    _own: Forward,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, None]:
    """For a method of [1, heads, tokens, width] each, to [1, heads, tokens, width]."""
    attended, _weights = attend(module, query.to(value.dtype), key.to(value.dtype), value, None, **options(module))
    return attended.transpose(1, 2), None


_SCORES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "GPTJAttention": lambda module: {"scaling": 1 / float(module.scale_attn)},
    "CodeGenAttention": lambda module: {"scaling": 1 / float(module.scale_attn)},
    "GPTNeoXJapaneseAttention": lambda module: {"scaling": 1 / float(module.norm_factor)},
    "GPTNeoSelfAttention": lambda module: {
        "scaling": 1.0,
        "sliding_window": module.config.window_size if module.attention_type == "local" else None,
    },
}
"""Modules with a method `_attn`, and the options of their attention."""


@cache
def alibi_slopes(heads: int, device: torch.device) -> Tensor:
    """[heads], the slopes of ALiBi (arXiv 2108.12409), which nobody may change."""
    above = 2 ** math.ceil(math.log2(heads))
    slopes = torch.pow(2.0, -torch.arange(1, above + 1) * (8 / above))
    return (slopes if above == heads else torch.cat([slopes[1::2], slopes[::2]])[:heads]).to(device)


def _bloom(module: Any, _own: Forward, hidden_states: Tensor, residual: Tensor, **_: Any) -> tuple[Tensor, None]:
    query, key, value = module._reshape(module.query_key_value(hidden_states))  # noqa: SLF001
    slopes = alibi_slopes(module.num_heads, query.device)
    attended, _weights = attend(module, query, key, value, None, scaling=module.inv_norm_factor, alibi=slopes)
    return module.dense(attended.flatten(2)) + residual, None


def _mpt(module: Any, _own: Forward, hidden_states: Tensor, position_bias: Tensor, **_: Any) -> tuple[Tensor, None]:
    joined = module.Wqkv(hidden_states)
    if module.clip_qkv:
        joined = joined.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    query, key, value = (each.unflatten(-1, (module.n_heads, -1)).transpose(1, 2) for each in joined.chunk(3, dim=2))
    # The bias has all positions of the context: [heads, 1, keys], rising by the slope from key to key.
    slopes = position_bias[:, 0, -1] - position_bias[:, 0, -2]
    attended, _weights = attend(module, query, key, value, None, scaling=module.softmax_scale, alibi=slopes)
    return module.out_proj(attended.flatten(2)), None


def _falcon(
    module: Any,
    _own: Forward,
    hidden_states: Tensor,
    alibi: Tensor | None,
    attention_mask: Tensor | None,  # noqa: ARG001
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    query, key, value = (each.transpose(1, 2) for each in _falcon_heads(module, module.query_key_value(hidden_states)))
    slopes = None
    if alibi is not None:
        slopes = alibi_slopes(module.num_heads, query.device) * module.inv_norm_factor
    elif position_embeddings is not None:
        query, key = (_rotated(each, *position_embeddings) for each in (query, key))
    attended, _weights = attend(module, query, key, value, None, scaling=module.inv_norm_factor, alibi=slopes)
    return module.dense(attended.flatten(2)), None


def _falcon_heads(module: Any, joined: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[1, tokens, heads, width] each. Not by the module's own method, which indexes by lists: a device gets copies."""
    if not module.new_decoder_architecture and not module.multi_query:
        query, key, value = joined.view(*joined.shape[:-1], module.num_heads, 3, -1).unbind(-2)
        return query, key, value
    sharing = module.num_heads // module.num_kv_heads
    shared = joined.view(*joined.shape[:-1], module.num_kv_heads, sharing + 2, -1)
    return shared[..., :-2, :].flatten(2, 3), shared[..., -2, :], shared[..., -1, :]


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embeddings over halves, of [1, heads, tokens, width] by [1, tokens, width]."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos.unsqueeze(1) + torch.cat([-second, first], dim=-1) * sin.unsqueeze(1)


def _decoder(module: Any, _own: Forward, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
    """The decoders that were copied from fairseq's, without the attention to an encoder that they may have."""
    query, key, value = (
        projection(hidden_states).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for projection in (module.q_proj, module.k_proj, module.v_proj)
    )
    attended, _weights = attend(module, query, key, value, None, scaling=module.scaling)
    return module.out_proj(attended.flatten(2)), None


class _Positions:
    """A cache whose length, added to a token's place in the pack, is its position."""

    def get_seq_length(self, *_: Any) -> Tensor:
        """[tokens], for each token of the step."""
        metadata = step_metadata()
        assert metadata is not None
        assert metadata.positions is not None
        return metadata.positions - torch.arange(len(metadata.positions), device=metadata.positions.device)

    def update(self, keys: Tensor, values: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """The new ones: the earlier are on pages."""
        return keys, values


def _with_positions(_module: Any, own: Forward, *args: Any, **kwargs: Any) -> Any:
    return own(*args, **kwargs | {"past_key_values": _Positions()})


def _embed_positions(_module: Any, own: Forward, *args: Any, **kwargs: Any) -> Any:
    """Of decoders that count positions themselves; they take others as [tokens]."""
    metadata = step_metadata()
    assert metadata is not None
    return own(*args, **kwargs | {"position_ids": metadata.positions})


def _after_padding(embedding: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Positions of RoBERTa's relatives, which begin behind the padding's index."""
    return None if step_metadata() is None else (inputs[0] + embedding.padding_idx + 1,)


_FORWARDS: dict[str, Forward] = {
    "BloomAttention": _bloom,
    "MptAttention": _mpt,
    "FalconAttention": _falcon,
    "XGLMAttention": _decoder,
    "TrOCRAttention": _decoder,
    "MvpAttention": _decoder,
    "Llama4TextAttention": _with_positions,
}
"""Attention modules by their class, and their forward in a step."""
