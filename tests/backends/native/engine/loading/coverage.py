"""Which model types run on the packed tier: the self-check over every type that transformers has a causal model for.

    python -m tests.backends.native.engine.loading.coverage     rewrites docs/models.md

Models are made from the defaults of their configurations, without weights; the check makes its own small copies.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from backends.native.engine.loading.self_check import why_not_packed

PAGE = Path(__file__).parents[5] / "docs" / "models.md"
PACKED = "packed"
_DECODER = {"is_decoder": True}
_HEAD = {"head_dim": 128}
# What published checkpoints say and the defaults leave open.
_SAID: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "bert-generation", "electra", "ernie", "roberta", "roc_bert", "xlm-roberta"), _DECODER),
    **dict.fromkeys(("camembert", "data2vec-text", "roberta-prelayernorm", "xlm-roberta-xl"), _DECODER),
    **dict.fromkeys(("big_bird", "megatron-bert", "rembert", "roformer", "xmod", "reformer"), _DECODER),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral"), _HEAD),
    "nemotron": _HEAD | {"num_key_value_heads": 48},
    "lfm2": {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
}
_INTRODUCTION = """\
# Models

Any causal language model folder is served. Models of the types below run on the fast tier, many sequences in one
forward pass over a paged cache; the others run on the cache tier, one by one, through transformers' own cache. Which of
the two is decided at every start, by the logits of a small random copy
([self_check.py](../backends/native/engine/loading/self_check.py)), so that a type missing here may still be fast, and
one listed here is not trusted for that.

Made by `python -m tests.backends.native.engine.loading.coverage` from the default configurations of transformers
{version}.
"""


def coverage() -> dict[str, str]:
    """`packed`, or why not, for every type."""
    transformers.logging.set_verbosity_error()
    types = sorted({config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: _outcome(name) for name in types}


def _outcome(model_type: str) -> str:
    try:
        config = AutoConfig.for_model(model_type, **_SAID.get(model_type, {}))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    except Exception:  # whatever a class raises whose defaults do not make a model
        return "its default configuration makes no model"
    return _short(why_not_packed(model) or PACKED)


def _short(why: str) -> str:
    if "small copy fails" in why or "small copy lacks" in why:
        return "no small copy of it can be made"
    return re.sub(r" \(.*\)$", "", why)


def page(found: dict[str, str]) -> str:
    """The page that tells of it."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for model_type, outcome in found.items():
        groups[outcome].append(model_type)
    packed = groups.pop(PACKED)
    lines = [_INTRODUCTION.format(version=transformers.__version__), f"## Fast: {len(packed)} types", "", _list(packed)]
    lines += ["", f"## On the cache tier: {len(found) - len(packed)} types"]
    for why, types in sorted(groups.items(), key=lambda group: -len(group[1])):
        lines += ["", f"**{why[0].upper()}{why[1:]}:**", _list(types)]
    return "\n".join(lines) + "\n"


def _list(types: list[str]) -> str:
    text = ", ".join(f"`{name}`" for name in types)
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page(coverage()))
