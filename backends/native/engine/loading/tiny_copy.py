"""A small, random copy of a model: the same class with the same switches, cheap enough to be run at every start.

Only sizes change that no other size is derived from by a rule we would have to know: widths of heads, rotary parts
and low-rank projections stay. The weights are drawn wide, so that the logits depend on the whole context and not on
the last token alone, as they would at an ordinary initialisation.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

WINDOW = 8
VOCAB = 128

_MOST_LAYERS = 12
_MOST_PARAMETERS = 150_000_000
# What may be made smaller, and to what, if it is larger. None of them must be there.
_SMALLER = {
    "intermediate_size": 96,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "ffn_dim": 96,
    "n_inner": 96,
    "max_window_layers": 1,
    "num_kv_shared_layers": 1,
    "first_k_dense_replace": 1,
    "sliding_window": WINDOW,
    "vocab_size_per_layer_input": VOCAB,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}
# The same of towers for sound and for pictures, of which the first two are what they call their layers.
_SMALLER_TOWER = {"num_blocks": 1, "depth": 1, "intermediate_size": 96}
# What towers call the width of the text part, which they end in.
_WIDTHS_OF_TEXT = ("out_hidden_size", "projection_dim")
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
_IMAGE_TOKEN_IDS = ("image_token_id", "image_token_index")


def shrunken_copy(
    model: Any,
    *,
    few_heads: bool = True,
    few_layers: bool = True,
    image_token_id: int | None = None,
    most_parameters: int = _MOST_PARAMETERS,
) -> Any:
    """A small model of the same class, in float32 on the same device (the CPU if it is `meta`), in evaluation mode.

    Args:
        model: a causal or composite language model.
        few_heads: whether to take attention heads away, and with them hidden width.
        few_layers: whether to take layers away. Not every class can do without them.
        image_token_id: the copy's placeholder for pictures; the model's own may be outside of the small vocabulary.
        most_parameters: beyond which a copy is not small.

    Raises:
        Exception: of any kind, if the class cannot be built that way.
    """
    config = shrunken_config(model.config, few_heads=few_heads, few_layers=few_layers)
    for name in _IMAGE_TOKEN_IDS if image_token_id is not None else ():
        if hasattr(config, name):
            setattr(config, name, image_token_id)
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in type(model)(copy.deepcopy(config)).parameters())
    if parameters > most_parameters:
        raise ValueError(f"a copy of {parameters:,} parameters is not small")
    device = "cpu" if model.device.type == "meta" else model.device
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        small = type(model)(config).float().eval()
        _widen(small)
    return small


def shrunken_config(config: Any, *, few_heads: bool, few_layers: bool) -> Any:
    """A copy of `config` with its sizes reduced, those of its other parts (a vision tower) to one layer."""
    config = copy.deepcopy(config)
    text = config.get_text_config(decoder=True)
    for part in _towers(config, text):
        _shrink_layers(part, 1)
        for name, size in _SMALLER_TOWER.items():
            if isinstance(getattr(part, name, None), int):
                setattr(part, name, min(size, getattr(part, name)))
    if few_layers:
        _shrink_layers(text, _fewest_layers(text))
    if few_heads:
        width = text.hidden_size
        _shrink_heads(text)
        for part in _towers(config, text):
            for name in _WIDTHS_OF_TEXT:
                if getattr(part, name, None) == width:
                    setattr(part, name, text.hidden_size)
    for name, size in _SMALLER.items():
        present = getattr(text, name, None)
        if isinstance(present, list):
            setattr(text, name, [min(each, size) for each in present])
        elif isinstance(present, int) and present > size:
            setattr(text, name, size)
    for part in (config, text):
        part.vocab_size = VOCAB
        for name in _TOKEN_IDS:
            if getattr(part, name, None) is not None:
                setattr(part, name, 1)
    return config


def _towers(config: Any, text: Any) -> list[Any]:
    """The configurations of its other parts."""
    parts = (getattr(config, kind, None) for kind in config.sub_configs)
    return [part for part in parts if part is not None and part is not text]


def _fewest_layers(config: Any) -> int:
    """Enough to have every kind of layer, and two of the commonest."""
    total: int = config.num_hidden_layers
    lists = [value for value in vars(config).values() if isinstance(value, list | tuple) and len(value) == total]
    last = max((kinds.index(kind) for kinds in lists for kind in kinds), default=0)
    return min(total, max(2, last + 1), _MOST_LAYERS)


def _shrink_layers(config: Any, layers: int) -> None:
    """Keep the first `layers`; lists with an entry a layer are cut too."""
    total = getattr(config, "num_hidden_layers", None)
    if not isinstance(total, int) or total <= layers:
        return
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == total:
            setattr(config, name, value[:layers])
    config.num_hidden_layers = layers


def _shrink_heads(config: Any) -> None:
    heads = config.num_attention_heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    width = config.hidden_size // heads
    fewer_shared = min(shared, 2)
    fewer = fewer_shared * min(heads // shared, 2)
    config.num_attention_heads = fewer
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = fewer_shared
    config.hidden_size = fewer * (vars(config).get("head_dim") or width)  # not getattr: it may vary by layer


def _widen(model: Any) -> None:
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
        else:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
