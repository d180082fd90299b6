"""Small random copies of models: the same class and configuration switches, small enough to be run at every start.

Only independent sizes are reduced: widths of heads, rotary parts and low-rank projections stay, since others are
derived from them by rules of each class. Weights are drawn wide, so that the logits depend on the whole context and
not, as at an ordinary initialization, on the last token alone.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

WINDOW = 8
VOCAB = 128
_WIDTH = 256
"""The hidden width of models without attention heads."""

_CHUNK = 16
"""Tokens that recurrent layers compute at a time: the longest prompts of the checks have several chunks."""

_MAX_LAYERS = 12
_KEY_HEADS = 2
_MAX_PARAMETERS = 150_000_000
# Upper bounds of sizes in the text part's configuration; a configuration need not have all of them.
_MAX_SIZES = {
    "intermediate_size": 96,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "ffn_dim": 96,
    "n_inner": 96,
    "max_window_layers": 1,
    "num_kv_shared_layers": 1,
    "first_k_dense_replace": 1,
    "sliding_window": WINDOW,
    "attention_window_size": WINDOW,
    "attention_chunk_size": WINDOW,
    "floor_scale": WINDOW,
    "vocab_size_per_layer_input": VOCAB,
    "decoder_vocab_size": VOCAB,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "linear_num_heads": 2,
    "mamba_chunk_size": _CHUNK,
}
# The same for towers (vision, audio); the first two are names for the number of layers.
_MAX_TOWER_SIZES = {"num_blocks": 1, "depth": 1, "intermediate_size": 96}
# Names of towers for the width of their output, which is that of the text part.
_WIDTHS_OF_TEXT = ("out_hidden_size", "projection_dim")
# Names for the heads, their width, the groups and the expansion of state space layers: heads times width is expansion
# times hidden width.
_STATE_SPACES = (
    ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_expand"),
    ("n_mamba_heads", "mamba_headdim", "mamba_ngroups", "mamba_expand"),
    ("num_heads", "head_dim", "n_groups", "expand"),
)
# Names for the state's size, beside which `chunk_size` is that of a recurrent layer.
_STATE_SIZES = ("mamba_d_state", "ssm_state_size", "state_size")
# CodeGen's code splits its heads over four devices that it was trained on.
_LEAST_HEADS = {"codegen": 4}
# Names for widths that are the hidden width, in models without attention heads.
_HIDDEN_WIDTHS = ("attention_hidden_size", "embedding_dim")
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
_IMAGE_TOKEN_IDS = ("image_token_id", "image_token_index")


def shrunken_copy(
    model: Any,
    *,
    few_heads: bool = True,
    few_layers: bool = True,
    image_token_id: int | None = None,
    max_parameters: int = _MAX_PARAMETERS,
) -> Any:
    """Build a small model of the same class, in float32 on the same device (CPU for `meta`), in evaluation mode.

    Args:
        model: a causal or composite language model.
        few_heads: whether to remove attention heads, and with them hidden width.
        few_layers: whether to remove layers. Not every class can be built with fewer.
        image_token_id: the copy's placeholder for images; the model's own may be outside of the small vocabulary.
        max_parameters: a larger copy is an error.

    Raises:
        ValueError: the copy would have more than `max_parameters`.
        Exception: of any kind, if the class cannot be built with these sizes.
    """
    # A model that is split over devices has a small copy that can be split as well.
    ranks = getattr(model, "tp_size", None) or 1
    config = shrunken_config(model.config, few_heads=few_heads, few_layers=few_layers, key_heads=max(_KEY_HEADS, ranks))
    for name in _IMAGE_TOKEN_IDS if image_token_id is not None else ():
        if hasattr(config, name):
            setattr(config, name, image_token_id)
    with torch.device("meta"):
        # Counted on `meta`, where a model has shapes and no memory. The configuration is copied, since constructors may
        # change it.
        parameters = sum(parameter.numel() for parameter in type(model)(copy.deepcopy(config)).parameters())
    if parameters > max_parameters:
        raise ValueError(f"a copy of {parameters:,} parameters is not small")
    device = "cpu" if model.device.type == "meta" else model.device
    # The process' random state is left as it was.
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        small = type(model)(config).float().eval()
        widen(small)
    return small


def shrunken_config(config: Any, *, few_heads: bool, few_layers: bool, key_heads: int = _KEY_HEADS) -> Any:
    """A copy of `config` with reduced sizes, and `key_heads` key heads; towers (vision, audio) keep one layer."""
    config = copy.deepcopy(config)
    text = config.get_text_config(decoder=True)
    for part in _towers(config, text):
        _shrink_tower(part)
    if few_layers:
        _shrink_layers(text, _fewest_layers(text))
    if few_heads:
        width = text.hidden_size
        _shrink_heads(text, key_heads)
        _shrink_state_spaces(text)
        _shrink_linear_heads(text)
        for part in _towers(config, text):
            for name in _WIDTHS_OF_TEXT:
                if getattr(part, name, None) == width:
                    setattr(part, name, text.hidden_size)
    _shrink_sizes(text)
    for part in (config, text):
        _shrink_vocabulary(part)
    return config


def _towers(config: Any, text: Any) -> list[Any]:
    """The configurations of the parts other than text."""
    parts = (getattr(config, kind, None) for kind in config.sub_configs)
    return [part for part in parts if part is not None and part is not text]


def _shrink_tower(config: Any) -> None:
    """Keep one layer of a tower, and reduce its sizes."""
    _shrink_layers(config, 1)
    for name, size in _MAX_TOWER_SIZES.items():
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, min(size, getattr(config, name)))


def _shrink_sizes(config: Any) -> None:
    """Reduce sizes above `_MAX_SIZES`; a list holds a size for each layer."""
    for name, size in _MAX_SIZES.items():
        present = getattr(config, name, None)
        if isinstance(present, list):
            setattr(config, name, [min(each, size) for each in present])
        elif isinstance(present, int) and present > size:
            setattr(config, name, size)


def _shrink_vocabulary(config: Any) -> None:
    """Set the vocabulary's size to `VOCAB`, and special token ids to one that is in it."""
    config.vocab_size = VOCAB
    for name in _TOKEN_IDS:
        if getattr(config, name, None) is not None:
            setattr(config, name, 1)


def _fewest_layers(config: Any) -> int:
    """The fewest layers that include every kind of layer, at least two."""
    total: int = config.num_hidden_layers
    found = [*vars(config).values(), getattr(config, "layers_block_type", None)]
    lists = [value for value in found if isinstance(value, list | tuple) and len(value) == total]
    # Lists with an entry for each layer name its kind (attention, experts): keep layers up to the last first occurrence
    # of a kind, and two that share one block of weights (Zamba): those of kind hybrid.
    last = max((kinds.index(kind) for kinds in lists for kind in kinds), default=0)
    for kinds in lists:
        last = max([last, *[index for index, kind in enumerate(kinds) if kind == "hybrid"][:2]])
    return min(total, max(2, last + 1), _MAX_LAYERS)


def _shrink_layers(config: Any, layers: int) -> None:
    """Keep the first `layers` layers; lists with one entry per layer are cut as well."""
    total = getattr(config, "num_hidden_layers", None)
    if not isinstance(total, int) or total <= layers:
        return
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == total:
            setattr(config, name, value[:layers])
    config.num_hidden_layers = layers


def _shrink_heads(config: Any, key_heads: int) -> None:
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        for name in _HIDDEN_WIDTHS:
            if getattr(config, name, None) == config.hidden_size:
                setattr(config, name, min(config.hidden_size, _WIDTH))
        config.hidden_size = min(config.hidden_size, _WIDTH)
        return
    shared = getattr(config, "num_key_value_heads", None) or heads
    width = config.hidden_size // heads
    # Each key head is shared by up to two query heads: grouped attention stays grouped.
    fewer_shared = min(shared, _LEAST_HEADS.get(config.model_type, key_heads))
    fewer = fewer_shared * min(heads // shared, 2)
    config.num_attention_heads = fewer
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = fewer_shared
    config.hidden_size = fewer * (vars(config).get("head_dim") or width)  # not getattr: it may vary by layer
    # Zamba's attention is as wide as the hidden states and the embeddings together.
    if getattr(config, "attention_hidden_size", None) == 2 * width * heads:
        config.attention_hidden_size = 2 * config.hidden_size


def _shrink_state_spaces(config: Any) -> None:
    """Fit the heads of state space layers to the hidden width; their width stays where it can."""
    if hasattr(config, "chunk_size") and any(hasattr(config, name) for name in _STATE_SIZES):
        config.chunk_size = min(config.chunk_size, _CHUNK)
    for names in _STATE_SPACES:
        heads, width, groups, expand = (getattr(config, name, None) for name in names)
        if heads is None or width is None or groups is None or expand is None:
            continue
        inner = int(expand * config.hidden_size)
        fitting = range(max(inner // width, groups), 0, -1)
        heads = next(each for each in fitting if inner % each == 0 and each % groups == 0)
        setattr(config, names[0], heads)
        setattr(config, names[1], inner // heads)


def _shrink_linear_heads(config: Any) -> None:
    """Keep two key heads of linear attention, each shared by up to two value heads: shared keys stay shared."""
    keys, values = (getattr(config, f"linear_num_{kind}_heads", None) for kind in ("key", "value"))
    if isinstance(keys, int) and isinstance(values, int):
        config.linear_num_key_heads = min(keys, 2)
        config.linear_num_value_heads = config.linear_num_key_heads * min(values // keys, 2)


def widen(model: Any) -> None:
    """Draw random weights in place, wide enough that logits depend on the whole context."""
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            # Scaled by the inputs, so that a product has about 1.5 times the spread of its input, whatever the width.
            parameter.data.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
        else:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
