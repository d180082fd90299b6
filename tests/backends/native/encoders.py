"""Small deterministic encoders in folders of sentence-transformers' format, built without it.

`CASES` make dense vectors, `SPARSE` sparse ones, `LATE` one of each token.

``python -m tests.backends.native.encoders`` writes the golden vectors, where sentence-transformers is installed: its
own, of the same folders. The suite does without it, since it would bring torch from elsewhere.
"""

from __future__ import annotations

import json
import string
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedTokenizerFast

GOLDEN = Path(__file__).parents[2] / "golden" / "embeddings.json"
GOLDEN_SPARSE = GOLDEN.with_name("sparse_embeddings.json")
GOLDEN_LATE = GOLDEN.with_name("late_embeddings.json")
TEXTS = (
    "A star is a ball of hot gas.",
    "hi",
    "What is the capital of France, and what do the people there eat when it rains?",
    "HELLO there!",
)
WIDTH = 24

_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_LETTERS = string.ascii_letters + string.digits + string.punctuation
_VOCABULARY = {token: id for id, token in enumerate([*_SPECIAL, *_LETTERS, *(f"##{letter}" for letter in _LETTERS)])}
_SHAPE = {"vocab_size": len(_VOCABULARY), "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 3}
_SHAPE |= {"intermediate_size": 40, "max_position_embeddings": 130, "pad_token_id": 1, "bos_token_id": 0}
_SHAPE |= {"eos_token_id": 2}

_PLACES = dict.fromkeys(("MLMTransformer", "SpladePooling"), ".sparse_encoder.models")
_PLACES |= {"MultiVectorMask": ".multi_vector_encoder.modules"}


@dataclass(frozen=True)
class Case:
    """A folder. `pooling`, `kinds` and `after` go into its files; `instruction` is sent with the texts."""

    family: str
    pooling: dict[str, Any]
    after: tuple[str, ...] = ()
    prompts: dict[str, str] = field(default_factory=dict)
    default: str | None = None
    instruction: str | None = None
    lower: bool = False
    more: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, str] = ("Transformer", "Pooling")
    task: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)


MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
E5 = {"query": "query: ", "passage": "passage: "}
CASES = {
    "bert, mean": Case("bert", MEAN, ("Normalize",), lower=True),
    "mpnet, cls": Case("mpnet", {"pooling_mode": "cls"}),
    "xlm-roberta, prompts": Case("xlm-roberta", MEAN, ("Normalize",), E5, "passage"),
    "xlm-roberta, a prompt": Case("xlm-roberta", MEAN, ("Normalize",), E5, "passage", "query"),
    "bert, dense": Case("bert", {"pooling_mode_cls_token": True}, ("Dense", "Normalize")),
    "bert, two ways": Case("bert", {"pooling_mode": ["mean", "max"]}),
    "roberta, prompt left out": Case("roberta", MEAN | {"include_prompt": False}, (), {"q": "Say what this is: "}, "q"),
    "modernbert, mean": Case("modernbert", MEAN, ("Normalize",), more={"cls_token_id": 0, "sep_token_id": 2}),
    "qwen3, last": Case(
        "qwen3",
        {"pooling_mode_lasttoken": True},
        ("Normalize",),
        {"query": "Instruct: find it\nQuery:"},
        instruction="query",
        more={"num_key_value_heads": 3, "head_dim": 8},
    ),
    "llama, weighted": Case("llama", {"pooling_mode": "weightedmean"}, more={"num_key_value_heads": 3}),
}
SPARSE = {
    "bert, max": Case("bert", {"pooling_strategy": "max"}, kinds=("MLMTransformer", "SpladePooling")),
    "xlm-roberta, sum, twice": Case(
        "xlm-roberta",
        {"pooling_strategy": "sum", "activation_function": "log1p_relu"},
        prompts=E5,
        instruction="query",
        kinds=("Transformer", "SpladePooling"),
        task="fill-mask",
    ),
}

QD = {"query": "[Q] ", "document": "[D] "}
_EXPANDED = {"strategy": "fixed", "attend": True, "length": 20, "token": None}
LATE = {
    "bert, fixed": Case(
        "bert",
        {},
        ("MultiVectorMask", "Normalize"),
        QD,
        kinds=("Transformer", "Dense"),
        settings={"model_type": "MultiVectorEncoder", "skiplist_words": [".", "i"]},
        limits={"query_expansion": _EXPANDED, "document_length": 90},
    ),
    "xlm-roberta, min": Case(
        "xlm-roberta",
        {},
        ("MultiVectorMask",),
        kinds=("Transformer", "Dense"),
        settings={"model_type": "MultiVectorEncoder", "skiplist_tasks": ["query"], "skiplist_words": ["i"]},
        limits={"query_expansion": _EXPANDED | {"strategy": "min", "attend": False}, "query_length": 90},
    ),
    "bert, PyLate": Case(
        "bert",
        {},
        kinds=("Transformer", "Dense"),
        settings={"model_type": "ColBERT", "query_prefix": "<unk> ", "document_prefix": "##D ", "query_length": 32},
    ),
}


def build(folder: Path, case: Case) -> Path:
    """Write the folder of a case."""
    model = _model(case.family, case.more, AutoModelForMaskedLM if case.kinds[1] == "SpladePooling" else AutoModel)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    steps = [*case.kinds, *case.after]
    paths = ["", *(f"{place}_{step}" for place, step in enumerate(steps) if place)]
    types = [f"sentence_transformers{_PLACES.get(step, '.models')}.{step}" for step in steps]
    _write(
        folder / "modules.json",
        [{"idx": i, "name": str(i), "path": p, "type": t} for i, (p, t) in enumerate(zip(paths, types, strict=True))],
    )
    width = WIDTH * (len(case.pooling["pooling_mode"]) if isinstance(case.pooling.get("pooling_mode"), list) else 1)
    _write(folder / paths[1] / "config.json", {"word_embedding_dimension": WIDTH} | case.pooling)
    task = {} if case.task is None else {"transformer_task": case.task}
    limits = {"max_seq_length": 100, "do_lower_case": case.lower} | task | case.limits
    _write(folder / "sentence_bert_config.json", limits)
    prompts = {"prompts": case.prompts, "default_prompt_name": case.default}
    if case.kinds[1] == "SpladePooling":
        prompts |= {"model_type": "SparseEncoder"}
    _write(folder / "config_sentence_transformers.json", prompts | case.settings)
    for step, path in zip(steps, paths, strict=True):
        (folder / path).mkdir(exist_ok=True)
        if step == "Dense":
            activation = "torch.nn.modules.activation.Tanh"
            shape = {"in_features": width, "out_features": 16, "bias": True, "activation_function": activation}
            shape |= {"module_input_name": "token_embeddings"} if "MultiVectorMask" in steps else {}
            _write(folder / path / "config.json", shape)
            weights = {"linear.weight": _numbers(16, width, seed=1), "linear.bias": _numbers(16, seed=2)}
            save_file(weights, folder / path / "model.safetensors")
        if step == "MultiVectorMask":
            mask = {key: value for key, value in case.settings.items() if key.startswith("skiplist")}
            _write(folder / path / "config.json", mask)
        if step == "Normalize" and "MultiVectorMask" in steps:
            _write(folder / path / "config.json", {"module_input_name": "token_embeddings"})
    return folder


def _model(family: str, more: dict[str, Any], auto_class: Any) -> Any:
    """Random weights, so wide that every token matters, from a generator that numpy keeps stable."""
    model = auto_class.from_config(AutoConfig.for_model(family, **_SHAPE, **more)).float().eval()
    for seed, (_, parameter) in enumerate(sorted(model.named_parameters())):
        wide = _numbers(*parameter.shape, seed=seed)
        parameter.data = wide * 1.5 if parameter.dim() > 1 else parameter.data + wide
    return model


def _numbers(*shape: int, seed: int) -> torch.Tensor:
    drawn = np.random.RandomState(seed).normal(0.0, shape[-1] ** -0.5, shape)
    return torch.tensor(drawn, dtype=torch.float32)


def _tokenizer() -> PreTrainedTokenizerFast:
    """One word piece per character, and an encoder's special tokens."""
    tokenizer = Tokenizer(models.WordPiece(_VOCABULARY, unk_token="<unk>", max_input_chars_per_word=1000))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    named = dict(zip(names, _SPECIAL, strict=True)) | {"cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def _write(file: Path, said: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(said))


def _golden() -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer

    vectors: dict[str, Any] = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            model = SentenceTransformer(str(build(Path(folder), case)), device="cpu", local_files_only=True)
            found = model.encode(list(TEXTS), prompt_name=case.instruction, batch_size=4)
            vectors[name] = [[round(float(value), 8) for value in vector] for vector in found]
    return vectors


def _golden_sparse() -> dict[str, Any]:
    """Of each text the index and value of each component that is not 0."""
    from sentence_transformers import SparseEncoder

    vectors: dict[str, Any] = {}
    for name, case in SPARSE.items():
        with tempfile.TemporaryDirectory() as folder:
            model = SparseEncoder(str(build(Path(folder), case)), device="cpu", local_files_only=True)
            found = model.encode(list(TEXTS), prompt_name=case.instruction, convert_to_sparse_tensor=False)
            pairs = [
                [(index, round(float(row[index]), 8)) for index in row.nonzero().flatten().tolist()] for row in found
            ]
            vectors[name] = pairs
    return vectors


def _golden_late() -> dict[str, Any]:
    """Of each text the vectors as a query, then those as a document."""
    from sentence_transformers import MultiVectorEncoder

    vectors: dict[str, Any] = {}
    for name, case in LATE.items():
        with tempfile.TemporaryDirectory() as folder:
            model = MultiVectorEncoder(str(build(Path(folder), case)), device="cpu", local_files_only=True)
            queries = model.encode_query(list(TEXTS[:2]))
            documents = model.encode_document(list(TEXTS[:2]))
            vectors[name] = [[[round(float(v), 6) for v in row] for row in each] for each in (*queries, *documents)]
    return vectors


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(_golden(), indent=None) + "\n")
    GOLDEN_LATE.write_text(json.dumps(_golden_late(), indent=None) + "\n")
    GOLDEN_SPARSE.write_text(json.dumps(_golden_sparse(), indent=None) + "\n")
    sys.exit(0)
