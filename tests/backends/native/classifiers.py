"""Small models with classification heads, of several architectures, and what transformers makes of their inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from tests.backends.native.encoders import _SHAPE, _numbers, _tokenizer

MORE: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"type_vocab_size": 1},
    "xlm-roberta": {"type_vocab_size": 1},
    "modernbert": {"cls_token_id": 0, "sep_token_id": 2},
    "distilbert": {"dim": 24, "n_heads": 3, "n_layers": 2, "hidden_dim": 40},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    "qwen3": {"num_key_value_heads": 3, "head_dim": 8},
}
"""Architectures, and what their configurations need beside the common shape."""


def build(folder: Path, family: str, labels: int = 1, **config: Any) -> Path:
    """Write a folder with random weights, so wide that every token matters."""
    made = AutoConfig.for_model(family, **_SHAPE, **MORE[family], num_labels=labels, **config)
    model = AutoModelForSequenceClassification.from_config(made).float().eval()
    for seed, (_, parameter) in enumerate(sorted(model.named_parameters())):
        wide = _numbers(*parameter.shape, seed=seed)
        parameter.data = wide * 1.5 if parameter.dim() > 1 else parameter.data + wide
    model.save_pretrained(folder)
    tokenizer(family).save_pretrained(folder)
    if family == "bert":
        _change(folder / "tokenizer_config.json", model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    return folder


def tokenizer(family: str) -> PreTrainedTokenizerBase:
    """The encoders' tokenizer with a form of pairs."""
    made = _tokenizer()
    kind = 1 if family == "bert" else 0
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=f"<s> $A </s> $B:{kind} </s>:{kind}", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def logits(folder: Path, texts: Sequence[Any], **how: Any) -> torch.Tensor:
    """[texts, labels]: transformers' own logits, of each text or pair alone."""
    tokens = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).float().eval()
    model.config.use_cache = False
    rows = []
    for text in texts:
        parts = (text,) if isinstance(text, str) else text
        with torch.inference_mode():
            rows.append(model(**tokens(*parts, return_tensors="pt", **how)).logits[0])
    return torch.stack(rows)


def write(folder: Path, **config: Any) -> None:
    """Change fields of a folder's configuration."""
    _change(folder / "config.json", **config)


def _change(file: Path, **config: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
