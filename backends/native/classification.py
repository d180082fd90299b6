"""The classification head of a checkpoint: its labels, and the function that makes scores of the model's numbers.

Cross-encoders, which score a pair of texts, are such models with one label, or language models that are asked for it
(`cross_encoder`). Reads the folder's files and imports no torch: worker and engine both use it.

Sources: huggingface/sentence-transformers (6.2): cross_encoder/model.py; vllm-project/vllm (0.33):
vllm/model_executor/layers/pooler/activations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from typing import Any, Literal

import msgspec

from backends.native.cross_encoder import CrossEncoder, read_cross_encoder
from backends.native.rerankers import Reranker
from backends.native.sentence_transformers import RecipeError, read_json

Activation = Literal["identity", "sigmoid", "softmax"]

_ARCHITECTURE = "ForSequenceClassification"
_CLASSES: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax"}
"""Classes of `torch.nn` that a folder may name as its function."""
_PROBLEMS: dict[str, Activation] = {
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


class Head(msgspec.Struct, frozen=True):
    """A classification head.

    Attributes:
        labels: their names, in the order of the model's numbers.
        activation: the function of these numbers.
        of: the model and the form of a pair.
    """

    labels: tuple[str, ...]
    activation: Activation
    of: CrossEncoder = CrossEncoder()

    def scores(self, numbers: Sequence[float]) -> tuple[float, ...]:
        """The function of the numbers of one text or pair."""
        return _FUNCTIONS[self.activation](numbers)


def read_head(model: str, reranker: str | Reranker = "auto") -> Head | None:
    """Read the classification head of a checkpoint folder, or what makes it a `reranker`; None if it has neither.

    Raises:
        RecipeError: it needs something unsupported, or its files cannot be read.
    """
    found = read_cross_encoder(model, reranker)
    if found is None and (Path(model) / "modules.json").is_file():
        return None
    of = found or CrossEncoder()
    file = Path(model, of.folder, "config.json")
    config = read_json(file)
    if not isinstance(config, dict) or not (of.answers or _classifies(config)):
        if found is None:
            return None
        needs = "" if found.asked is None else ": `reranker` needs `answers`"
        raise RecipeError(f"'{file}' describes no model with a classification head{needs}.")
    names = ("LABEL_0",) if of.answers else _labels(config)
    return Head(names, _activation(config, len(names), of.function, file), of)


def _classifies(config: dict[str, Any]) -> bool:
    names = config.get("architectures") or ()
    return bool(names) and all(str(name).endswith(_ARCHITECTURE) for name in names)


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    labels = config.get("id2label")
    if not isinstance(labels, dict):
        labels = {str(place): f"LABEL_{place}" for place in range(config.get("num_labels", 2))}
    return tuple(str(labels[place]) for place in sorted(labels, key=int))


def _activation(config: dict[str, Any], labels: int, function: str | None, file: Path) -> Activation:
    """The function that sentence-transformers has written, else that of the kind of problem, else by the labels."""
    own = config.get("sentence_transformers")
    named = function or (own or {}).get("activation_fn") or config.get("sbert_ce_default_activation_function")
    if named is not None:
        # Only names are compared, so that a checkpoint cannot name code to run.
        module, _, name = str(named).rpartition(".")
        if not module.startswith("torch.nn.") or name not in _CLASSES:
            raise RecipeError(f"'{file}' or the folder's settings name the function {named}, which is not supported.")
        return _CLASSES[name]
    if (problem := config.get("problem_type")) in _PROBLEMS:
        return _PROBLEMS[problem] if labels > 1 or problem == "regression" else "sigmoid"
    return "softmax" if labels > 1 else "sigmoid"


def _sigmoid(numbers: Sequence[float]) -> tuple[float, ...]:
    # Both forms are the same function; each `exp` is of a number below 0, so that none overflows.
    return tuple(1 / (1 + exp(-x)) if x >= 0 else exp(x) / (1 + exp(x)) for x in numbers)


def _softmax(numbers: Sequence[float]) -> tuple[float, ...]:
    powers = [exp(x - max(numbers)) for x in numbers]
    total = sum(powers)
    return tuple(power / total for power in powers)


_FUNCTIONS: dict[Activation, Callable[[Sequence[float]], tuple[float, ...]]] = {
    "identity": tuple,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
}
