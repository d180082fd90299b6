"""Language models that rank: asked whether a document answers a query, their score is the logit of their answer.

Such a folder looks like that of any language model: neither the prompt nor the tokens stand in it. They are known here
for some models, which are recognized by their names, and are an option of the backend (`reranker`) for others. Reads
files and imports no torch: worker and engine both use it.

Sources: the model cards of Qwen/Qwen3-Reranker-0.6B and BAAI/bge-reranker-v2-gemma;
mixedbread-ai/mxbai-rerank: mxbai_rerank/mxbai_rerank_v2.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from backends.native.sentence_transformers import RecipeError, read_json

_PLACE = re.compile(r"\{(instruction|query|document)\}")
_DOCUMENT, _INSTRUCTION = "{document}", "{instruction}"


class Reranker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is asked for a score.

    Attributes:
        prompt: its parts, which are encoded apart, one after another. They have the places `{instruction}`, `{query}`
            and `{document}`; the part that ends with the document is cut where the whole is too long. A part with the
            instruction is left out if there is none.
        instruction: what stands in its place if a request has none.
        answers: tokens, as texts or ids; the score is the logit of the first, less that of the second if there is one.
            Empty: the model has a classification head.
    """

    prompt: tuple[str, ...]
    instruction: str = ""
    answers: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse prompts that could not be filled or cut."""
        with_document = [part for part in self.prompt if _DOCUMENT in part]
        if len(with_document) != 1 or with_document[0].find(_DOCUMENT) + len(_DOCUMENT) < len(with_document[0]):
            raise ValueError("one part of a reranker's `prompt` must end with {document}, and no other may have it")
        if not any("{query}" in part for part in self.prompt):
            raise ValueError("a reranker's `prompt` needs a place for the {query}")
        optional = [part for part in self.prompt if _INSTRUCTION in part]
        if not self.instruction and any("{query}" in part or _DOCUMENT in part for part in optional):
            raise ValueError("a reranker whose `prompt` has the {instruction} beside the query needs an `instruction`")
        if len(self.answers) > 2:
            raise ValueError("a reranker has at most two `answers`: the right one, and the other")

    def parts(self, instruction: str) -> tuple[str, ...]:
        """The parts of the prompt for requests with this instruction."""
        return tuple(part for part in self.prompt if instruction or _INSTRUCTION not in part)

    @property
    def takes_instruction(self) -> bool:
        """Whether the prompt has a place for an instruction."""
        return any(_INSTRUCTION in part for part in self.prompt)


def has_document(part: str) -> bool:
    """Whether this part of a prompt is the one that may be cut."""
    return part.endswith(_DOCUMENT)


def fill(part: str, values: Mapping[str, str]) -> str:
    """A part of a prompt with the values of its places; what looks like a place in a value stays as it is."""
    return _PLACE.sub(lambda place: values[place[1]], part)


_JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_EXPERT = (
    "You are a search relevance expert who evaluates how well documents match search queries. For each query-document "
    "pair, carefully analyze the semantic relationship between them, then provide your binary relevance judgment "
    "(0 for not relevant, 1 for relevant).\nRelevance:"
)
_QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."

KNOWN: dict[str, Reranker] = {
    "qwen3": Reranker(
        prompt=(
            f"<|im_start|>system\n{_JUDGE}<|im_end|>\n<|im_start|>user\n",
            "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        instruction="Given a web search query, retrieve relevant passages that answer the query",
        answers=("yes", "no"),
    ),
    "mxbai_v2": Reranker(
        prompt=(
            f"<|im_start|>system\n{_QWEN}<|im_end|>\n<|im_start|>user\n",
            "instruction: {instruction}\n",
            "query: {query}",
            "\n",
            "document: {document}",
            "\n",
            _EXPERT,
            "<|im_end|>\n<|im_start|>assistant\n",
        ),
        answers=("1", "0"),
    ),
    "bge_gemma": Reranker(
        prompt=("<bos>", "A: {query}", "\n", "B: {document}", "\n", "{instruction}"),
        instruction="Given a query A and a passage B, determine whether the passage contains an answer to the query by "
        "providing a prediction of either 'Yes' or 'No'.",
        answers=("Yes",),
    ),
}
"""By the names that the option may have."""
_NAMES = {
    "qwen3": ("qwen3", re.compile(r"qwen3-reranker")),
    "mxbai_v2": ("qwen2", re.compile(r"mxbai-rerank-\w+-v2")),
    "bge_gemma": ("gemma", re.compile(r"bge-reranker-v2-gemma")),
}
"""The model type of each and what its folder's name, or its name in the hub, contains in small letters."""


def check_reranker(given: str | Reranker) -> None:
    """Refuse an unknown name.

    Raises:
        ValueError: it is one.
    """
    if isinstance(given, str) and given not in (names := ("auto", "none", *KNOWN)):
        raise ValueError(f"`reranker` is one of {', '.join(names)}, or a table, and not '{given}'")


def find_reranker(model: str, given: str | Reranker = "auto") -> Reranker | None:
    """How the model in a folder is asked for scores; None if it is not.

    Args:
        model: the folder.
        given: the option: a name of `KNOWN`, "auto" (by the folder), "none", or the answer itself.

    Raises:
        RecipeError: the folder is of a language model that ranks, and how is not known.
    """
    if isinstance(given, Reranker):
        return given
    if given != "auto":
        return KNOWN.get(given)
    if (Path(model) / "modules.json").is_file():  # it says itself how it is asked (`cross_encoder`)
        return None
    config = read_json(Path(model) / "config.json")
    names = config.get("architectures") if isinstance(config, dict) else None
    if not names or not all(str(name).endswith("ForCausalLM") for name in names):
        return None
    name = _name(Path(model)).lower()
    for known, (model_type, pattern) in _NAMES.items():
        if config.get("model_type") == model_type and pattern.search(name):
            return KNOWN[known]
    # What vLLM is given for it.
    if config.get("is_original_qwen3_reranker"):
        return KNOWN["qwen3"]
    if "rerank" in name or "classifier_from_token" in config:
        raise RecipeError(
            f"'{model}' is a language model that ranks, and with which prompt is not known here: set `reranker` of the "
            f'backend to a table with `prompt` and `answers`, to {", ".join(KNOWN)}, or to "none" to have it '
            "generate text."
        )
    return None


def answer_ids(folder: Path, asked: Reranker) -> tuple[int, ...]:
    """The ids of the answers.

    Raises:
        RecipeError: one is not one token of the model.
    """
    return tuple(answer if isinstance(answer, int) else _id(folder, answer) for answer in asked.answers)


def _id(folder: Path, token: str) -> int:
    from tokenizers import Tokenizer  # takes a tenth of a second, and most models rank nothing

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise RecipeError(
            f"'{folder}' has no tokenizer.json to look up the token '{token}' of `reranker`: give its id."
        )
    ids = Tokenizer.from_file(str(file)).encode(token, add_special_tokens=False).ids
    if len(ids) != 1:
        raise RecipeError(f"'{token}' of `reranker` is {len(ids)} tokens of the model in '{folder}', and not one.")
    return int(ids[0])


def _name(folder: Path) -> str:
    """The folder's name; in the hub's cache that of the model (`models--OWNER--NAME/snapshots/COMMIT`)."""
    return folder.parent.parent.name if folder.parent.name == "snapshots" else folder.name
