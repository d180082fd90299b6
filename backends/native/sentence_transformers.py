"""The recipe of a sentence-transformers folder: the prompt before a text, and how its hidden states become a vector.

Reads the folder's files and imports no torch: worker and engine both use it. A folder that cannot be followed exactly
is rejected, because nobody could distinguish an almost correct vector from a correct one.

Sources: huggingface/sentence-transformers (6.2): base/model.py, base/modules/{transformer,dense,normalize}.py,
sentence_transformer/modules/pooling.py, sparse_encoder/modules/splade_pooling.py, multi_vector_encoder/model.py. Older
folders have a boolean per pooling mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from string import punctuation
from typing import Any, Literal, get_args

import msgspec

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]

_OLD_POOLING: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_LATE = ("MultiVectorEncoder", "ColBERT")
"""Kinds of models of sentence-transformers and of PyLate that make a vector of each token."""
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")


class RecipeError(Exception):
    """The folder needs something unsupported; the text names the file, for the operator."""


class Dense(msgspec.Struct, frozen=True):
    """A linear layer after pooling; `activation` is a class of `torch.nn`."""

    folder: str
    activation: str


class Splade(msgspec.Struct, frozen=True):
    """How a sparse vector is made of the logits for masked tokens: log(1 + the positive ones), pooled over the tokens.

    `twice`: the logarithm is taken twice.
    """

    pooling: Literal["max", "sum"] = "max"
    twice: bool = False


class Expansion(msgspec.Struct, frozen=True):
    """How short queries are filled up to `length` tokens with `token` (None: the mask token), whose vectors count, too.

    `attend`: whether other tokens see them. `fixed`: queries have `length` tokens at most.
    """

    length: int
    token: str | None = None
    attend: bool = False
    fixed: bool = True


class Late(msgspec.Struct, frozen=True):
    """Late interaction (ColBERT): a vector of each token; queries and documents are read differently.

    Attributes:
        query_length: tokens of a query at most; None: as many as of any text.
        document_length: tokens of a document at most; likewise.
        expansion: of queries; None: they stay as they are.
        skipped: tokens that have no vector.
        skipped_in: where; `query`, `document`.
        prefixes: prompts that are tokens of their own, whatever they consist of.
    """

    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()
    skipped_in: tuple[str, ...] = ("document",)
    prefixes: tuple[str, ...] = ()

    def limit(self, *, query: bool) -> int | None:
        """Tokens of a query or a document at most; None: as many as of any text."""
        if not query:
            return self.document_length
        if self.expansion is None:
            return self.query_length
        if self.expansion.fixed:
            return self.expansion.length
        return self.query_length and max(self.query_length, self.expansion.length)


class Recipe(msgspec.Struct, frozen=True):
    """How vectors are computed from texts.

    Attributes:
        folder: of the encoder and its tokenizer, below the checkpoint.
        pooling: the pooling modes; the vectors of several are concatenated.
        include_prompt: whether the prompt's tokens are pooled, too.
        dense: layers after pooling, in order.
        normalize: whether vectors have length 1.
        prompts: the texts that may precede a text, by name.
        default_prompt: the name of the prompt for requests without an instruction.
        max_length: tokens of a text at most; None: the model's context.
        lower_case: whether texts are lowercased.
        splade: of models that make sparse vectors, instead of what follows `pooling`; None: vectors are dense.
        late: of models that make a vector of each token instead of pooling them; None: one of each text.
    """

    folder: str = ""
    pooling: tuple[Pooling, ...] = ("mean",)
    include_prompt: bool = True
    dense: tuple[Dense, ...] = ()
    normalize: bool = True
    prompts: dict[str, str] = {}
    default_prompt: str | None = None
    max_length: int | None = None
    lower_case: bool = False
    splade: Splade | None = None
    late: Late | None = None

    def prompt(self, instruction: str | None) -> str:
        """The text before an input: the prompt named `instruction`, or `instruction` itself and a space."""
        if not instruction:
            return self.prompts.get(self.default_prompt or "", "")
        # The checkpoint's prompts are used exactly as they are; only a free instruction is separated from the text.
        prompt = self.prompts.get(instruction, instruction)
        return prompt if prompt in self.prompts.values() or prompt[-1].isspace() else f"{prompt} "


PLAIN = Recipe()
"""For folders that are not of sentence-transformers: mean pooling, normalized."""


def read_recipe(model: str) -> Recipe | None:
    """Read the recipe of a checkpoint folder; None if it is not of sentence-transformers.

    Raises:
        RecipeError: it needs something unsupported.
    """
    folder = Path(model)
    settings = read_json(folder / "config_sentence_transformers.json") or {}
    steps = kinds_of(folder)
    if not steps:
        _check_vectors(folder)
        return None
    known = [kind for kind, _ in steps]
    if settings.get("model_type") in _LATE:
        return _read_late(folder, settings, steps)
    sparse = _is_splade(folder, steps)
    # Dropout has no effect at inference, so it is allowed and ignored.
    dense = known[:2] == ["Transformer", "Pooling"] and set(known[2:]) <= {"Dense", "Normalize", "Dropout"}
    if not (sparse or dense):
        raise RecipeError(f"'{folder / 'modules.json'}' has unsupported modules: {', '.join(known)}.")
    # A `Recipe` always normalizes last.
    if "Normalize" in known and "Dense" in known[known.index("Normalize") :]:
        raise RecipeError(f"'{folder / 'modules.json'}' has a Dense after a Normalize, which is not supported.")
    encoder, pooling = steps[0][1], read_json(folder / steps[1][1] / "config.json") or {}
    limits = read_json(folder / encoder / "sentence_bert_config.json") or {}
    return Recipe(
        folder=encoder,
        pooling=("mean",) if sparse else _pooling(pooling, folder / steps[1][1]),
        include_prompt=bool(pooling.get("include_prompt", True)),
        dense=tuple(_dense(folder, path) for kind, path in steps if kind == "Dense"),
        normalize="Normalize" in known,
        prompts={name: text for name, text in (settings.get("prompts") or {}).items() if text},
        default_prompt=settings.get("default_prompt_name"),
        max_length=_max_length(limits, read_json(folder / encoder / "tokenizer_config.json") or {}),
        lower_case=bool(limits.get("do_lower_case")),
        splade=_splade(pooling, folder / steps[1][1]) if sparse else None,
    )


def kinds_of(folder: Path) -> list[tuple[str, str]]:
    """The kind and path of each module of a folder, in order; empty if it is not of sentence-transformers.

    Raises:
        RecipeError: its `modules.json` cannot be read.
    """
    modules = read_json(folder / "modules.json")
    if modules is None:
        return []
    try:
        # A type is the path of a class, which differs between releases of the library; its last part does not.
        return [(str(module["type"]).rpartition(".")[2], str(module.get("path") or "")) for module in modules]
    except (TypeError, KeyError, AttributeError):
        raise RecipeError(f"'{folder / 'modules.json'}' is no list of modules.") from None


def generates(model: str) -> bool | None:
    """Whether the model in a folder generates text (True) or makes embeddings or scores only (False), as far as that
    can be known without loading it; None: it cannot.
    """
    try:
        if (Path(model) / "modules.json").is_file():
            return False
        architectures = (read_json(Path(model) / "config.json") or {}).get("architectures") or ()
    except (RecipeError, AttributeError):
        return None  # what is wrong with it is said when it is loaded
    # An encoder's checkpoint is published for masked tokens, or without an output layer.
    if architectures and all(str(name).endswith("ForSequenceClassification") for name in architectures):
        return False
    is_text = [str(name).endswith(("ForCausalLM", "ForConditionalGeneration")) for name in architectures]
    return True if is_text and all(is_text) else None


def read_json(file: Path) -> Any:
    """Decode a JSON file; None if there is none.

    Raises:
        RecipeError: it is not JSON.
    """
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"'{file}' is not JSON: {error}") from None


def _check_vectors(folder: Path) -> None:
    """Refuse folders of other libraries that define no vector for a text, but many."""
    names = (read_json(folder / "config.json") or {}).get("architectures") or ()
    if any("colbert" in str(name).lower() or str(name).endswith("ForRetrieval") for name in names):
        raise RecipeError(
            f"'{folder}' makes vectors of single tokens (late interaction, ColBERT): such folders are read with a "
            "modules.json, of sentence-transformers or PyLate."
        )


def _read_late(folder: Path, settings: dict[str, Any], steps: list[tuple[str, str]]) -> Recipe:
    known = [kind for kind, _ in steps]
    older = settings["model_type"] == "ColBERT"  # PyLate, which masks and normalizes without a module
    ends = known[known.index("MultiVectorMask") :] if "MultiVectorMask" in known else []
    projections = known[1 : len(known) - len(ends)]
    if known[0] != "Transformer" or set(projections) - {"Dense"} or ends[1:] not in ([], ["Normalize"]):
        raise RecipeError(f"'{folder / 'modules.json'}' has unsupported modules: {', '.join(known)}.")
    encoder = steps[0][1]
    limits = read_json(folder / encoder / "sentence_bert_config.json") or {}
    masks = [read_json(folder / path / "config.json") for kind, path in steps if kind == "MultiVectorMask"]
    mask = next(iter(masks), None) or {}
    if mask.get("keep_only_token_ids"):
        raise RecipeError(f"'{folder / 'modules.json'}' keeps vectors of some tokens only, which is not supported.")
    prompts = dict(settings.get("prompts") or {})
    prefixes = {task: settings.get(f"{task}_prefix") or "" for task in ("query", "document")}
    for task, prefix in prefixes.items():
        prompts[task] = prefix + (prompts.get(task) or "").removeprefix(prefix)
    return Recipe(
        folder=encoder,
        dense=tuple(_dense(folder, path, "token_embeddings") for kind, path in steps if kind == "Dense"),
        normalize=older or "Normalize" in ends,
        prompts={name: text for name, text in prompts.items() if text},
        default_prompt=settings.get("default_prompt_name"),
        max_length=_max_length(limits, read_json(folder / encoder / "tokenizer_config.json") or {}),
        lower_case=bool(limits.get("do_lower_case")),
        late=Late(
            query_length=limits.get("query_length") or settings.get("query_length"),
            document_length=limits.get("document_length") or settings.get("document_length"),
            expansion=_expansion(folder, limits, settings, older=older),
            skipped=tuple(_skipped(mask, settings, older=older)),
            skipped_in=tuple(mask.get("skiplist_tasks") or ("document",)),
            prefixes=tuple(filter(None, prefixes.values())),
        ),
    )


def _expansion(folder: Path, limits: dict[str, Any], settings: dict[str, Any], *, older: bool) -> Expansion | None:
    """That of the encoder's settings, else PyLate's."""
    given = limits.get("query_expansion") or settings.get("query_expansion")
    if given is None:
        if not older or "query_expansion" in settings or settings.get("do_query_expansion") is False:
            return None
        attend = settings.get("attend_to_expansion_tokens", settings.get("attend_to_mask_tokens"))
        return Expansion(settings.get("query_length") or 32, attend=bool(attend))
    if given.get("strategy") not in ("fixed", "min") or not isinstance(given.get("length"), int):
        raise RecipeError(f"'{folder}' expands queries by '{given.get('strategy')}', which is not supported.")
    return Expansion(given["length"], given.get("token"), bool(given.get("attend")), given.get("strategy") == "fixed")


def _skipped(mask: dict[str, Any], settings: dict[str, Any], *, older: bool) -> Iterable[str]:
    if not older:
        return mask.get("skiplist_words") or ()
    found: Iterable[str] | None = settings.get("skiplist_words")
    return punctuation if found is None else found


def _is_splade(folder: Path, steps: list[tuple[str, str]]) -> bool:
    """Whether the modules are a model for masked tokens, and pooling of its logits."""
    kinds = [kind for kind, _ in steps]
    if kinds == ["MLMTransformer", "SpladePooling"]:  # of older releases
        return True
    task = (read_json(folder / steps[0][1] / "sentence_bert_config.json") or {}).get("transformer_task")
    return kinds == ["Transformer", "SpladePooling"] and task == "fill-mask"


def _splade(config: dict[str, Any], folder: Path) -> Splade:
    pooling, function = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if pooling not in ("max", "sum") or function not in ("relu", "log1p_relu"):
        why = f"has the pooling '{pooling}' of '{function}', which is not supported."
        raise RecipeError(f"'{folder / 'config.json'}' {why}")
    return Splade(pooling, function == "log1p_relu")


def _pooling(config: dict[str, Any], folder: Path) -> tuple[Pooling, ...]:
    given = config.get("pooling_mode")
    if given is None:
        # Several modes may be true: their vectors are concatenated, in the order of `_OLD_POOLING`, which is the
        # library's.
        return tuple(way for name, way in _OLD_POOLING.items() if config.get(name)) or ("mean",)
    ways = (given,) if isinstance(given, str) else tuple(given)
    if unknown := set(ways) - set(get_args(Pooling)):
        raise RecipeError(f"'{folder / 'config.json'}' has the pooling mode '{min(unknown)}', which is not supported.")
    return ways


def _dense(folder: Path, path: str, own: str = "sentence_embedding") -> Dense:
    """A layer that reads and writes `own`: the pooled vector, or those of tokens."""
    file = folder / path / "config.json"
    config = read_json(file) or {}
    # Tanh is the library's default. Only classes of torch.nn are looked up, so that a checkpoint cannot name code to
    # run.
    module, _, activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")
    if not module.startswith("torch.nn.") or activation not in _ACTIVATIONS or config.get("use_residual"):
        raise RecipeError(f"'{file}' describes a Dense that is not supported.")
    # With another name the layer would read or write something else, such as the token embeddings.
    if not {config.get("module_input_name"), config.get("module_output_name")} <= {own, None}:
        raise RecipeError(f"'{file}' describes a Dense that does not take {own}.")
    return Dense(path, activation)


def _max_length(limits: dict[str, Any], tokenizer: dict[str, Any]) -> int | None:
    """The limit of the older file, else of the tokenizer; a huge number means no limit."""
    found = limits.get("max_seq_length") or tokenizer.get("model_max_length")
    # transformers writes `int(1e30)` as the `model_max_length` of a tokenizer without a limit.
    return int(found) if isinstance(found, int | float) and 0 < found < 10**9 else None
