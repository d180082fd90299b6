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
    AutoModelForCausalLM,
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


RANKING_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}S{{ message.content }};{% endif %}{% endfor %}"
    "Q{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }};"
    "D{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "{% if add_generation_prompt %}</s>A:{% endif %}"
)
"""A chat template of a query and a document, as rerankers have them."""


def build_cross_encoder(folder: Path, function: str = "Identity", **settings: Any) -> Path:
    """Make a folder with a classification head one of sentence-transformers 6: its function stands in its settings."""
    _modules(folder, "Transformer", task="sequence-classification")
    named = {"activation_fn": f"torch.nn.modules.linear.{function}", "model_type": "CrossEncoder"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(named | settings))
    return folder


def build_reranker(folder: Path, *answers: int, chat: bool = True) -> Path:
    """Write a language model that ranks by the logits of `answers`, as sentence-transformers 6 writes it."""
    made = AutoConfig.for_model("qwen3", **_SHAPE, **MORE["qwen3"], tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_config(made).float().eval()
    for seed, (_, parameter) in enumerate(sorted(model.named_parameters())):
        wide = _numbers(*parameter.shape, seed=seed)
        parameter.data = wide * 1.5 if parameter.dim() > 1 else parameter.data + wide
    model.save_pretrained(folder)
    tokens = tokenizer("qwen3")
    tokens.chat_template = RANKING_TEMPLATE if chat else None
    tokens.save_pretrained(folder)
    _modules(folder, "Transformer", "LogitScore", task="text-generation", chat=chat)
    named = dict(zip(("true_token_id", "false_token_id"), answers, strict=False))
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(named | {"module_input_name": "causal_logits"}))
    prompts = {"prompts": {"query": "rank them"}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "CrossEncoder"} | prompts))
    return folder


def answer_scores(folder: Path, texts: Sequence[str], answers: Sequence[int]) -> torch.Tensor:
    """[texts, 1]: by transformers, the last logit of the first answer less that of the second, of each text alone."""
    tokens = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).float().eval()
    rows = []
    for text in texts:
        with torch.inference_mode():
            last = model(**tokens(text, return_tensors="pt", add_special_tokens=False)).logits[0, -1]
        rows.append(last[answers[0]] - (last[answers[1]] if len(answers) > 1 else 0))
    return torch.stack(rows).unsqueeze(1)


def _modules(folder: Path, *kinds: str, task: str, chat: bool = False) -> None:
    paths = ["", *(f"{place}_{kind}" for place, kind in enumerate(kinds) if place)]
    steps = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.modules.{kind}"}
        for place, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(steps))
    forward = {"method": "forward", "method_output_name": "logits"}
    said: dict[str, Any] = {"transformer_task": task, "modality_config": {"text": forward}}
    if chat:
        said["modality_config"]["message"] = forward | {"format": "flat"}
        said["processing_kwargs"] = {"chat_template": {"add_generation_prompt": True}}
    (folder / "sentence_bert_config.json").write_text(json.dumps(said))


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
