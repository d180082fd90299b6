"""The cross-encoders of sentence-transformers (`modules.json`): their modules, function, prompt and form of a pair.

A cross-encoder is a model with a classification head, or a language model whose score is the logit of one token of its
answer ("yes"), or of that over another ("no"). Language models without `modules.json` are asked as `rerankers` says. A
folder that cannot be followed exactly is rejected. Reads files and imports no torch: worker and engine both use it.

Source: huggingface/sentence-transformers (6.2): cross_encoder/model.py, cross_encoder/modules/logit_score.py,
base/modules/transformer.py, base/modality.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from backends.native.rerankers import Reranker, answer_ids, find_reranker
from backends.native.sentence_transformers import RecipeError, kinds_of, read_json
from schemas.ir import TemplateOptions

_TYPE = "CrossEncoder"
_CLASSIFIER, _GENERATORS = "sequence-classification", ("text-generation", "any-to-any")


class PairChat(msgspec.Struct, frozen=True):
    """A pair is a chat of two messages, of the roles `query` and `document`, which the chat template renders.

    `parts`: their content is a list of parts.
    """

    parts: bool = False
    options: TemplateOptions = TemplateOptions(add_generation_prompt=False)


class CrossEncoder(msgspec.Struct, frozen=True):
    """What the folder says of a cross-encoder.

    Attributes:
        folder: of the model and its tokenizer, below the checkpoint.
        function: the name of the class that makes scores of the model's numbers; None: the usual one.
        answers: token ids; the score is the logit of the first, less that of the second if there is one. Empty: the
            model has a classification head.
        prompt: the text before the first text of a pair; in a chat, the system message.
        chat: how a pair is a chat; None: it is two texts.
        asked: how a pair becomes a prompt, if it does; `prompt` and `chat` are then empty.
    """

    folder: str = ""
    function: str | None = None
    answers: tuple[int, ...] = ()
    prompt: str = ""
    chat: PairChat | None = None
    asked: Reranker | None = None


def read_cross_encoder(model: str, reranker: str | Reranker = "auto") -> CrossEncoder | None:
    """Read a cross-encoder's folder; None if it is none of sentence-transformers and no `reranker` (`find_reranker`).

    Raises:
        RecipeError: it needs something unsupported.
    """
    root = Path(model)
    if (asked := find_reranker(model, reranker)) is not None:
        if (root / "modules.json").is_file():
            raise RecipeError(f"'{root / 'modules.json'}' says how the model is asked: leave out `reranker`.")
        return CrossEncoder(answers=answer_ids(root, asked), asked=asked)
    steps, settings = kinds_of(root), read_json(root / "config_sentence_transformers.json") or {}
    kinds, folder = [kind for kind, _ in steps], steps[0][1] if steps else ""
    transformer = read_json(root / folder / "sentence_bert_config.json") or {}
    task = transformer.get("transformer_task")
    if settings.get("model_type") != _TYPE and task != _CLASSIFIER and "LogitScore" not in kinds:
        return None
    if kinds not in (["Transformer"], ["Transformer", "LogitScore"]):
        raise RecipeError(f"'{root / 'modules.json'}' has unsupported modules for a {_TYPE}: {', '.join(kinds)}.")
    answers = _answers(root / steps[1][1] / "config.json") if len(steps) > 1 else ()
    if task not in ((None, *_GENERATORS) if answers else (None, _CLASSIFIER)):
        raise RecipeError(f"'{root / folder / 'sentence_bert_config.json'}' has the task '{task}' for a {_TYPE}.")
    prompts = settings.get("prompts") or {}
    return CrossEncoder(
        folder=folder,
        function=settings.get("activation_fn"),
        answers=answers,
        prompt=prompts.get(settings.get("default_prompt_name")) or "",
        chat=_chat(transformer),
    )


def _answers(file: Path) -> tuple[int, ...]:
    config = read_json(file) or {}
    found = tuple(config[name] for name in ("true_token_id", "false_token_id") if config.get(name) is not None)
    if not found or "true_token_id" not in config or not all(isinstance(id, int) and id >= 0 for id in found):
        raise RecipeError(f"'{file}' names no token whose logit is the score ('true_token_id').")
    # With another name the module would read something else than the last token's logits.
    if config.get("module_input_name", "causal_logits") != "causal_logits":
        raise RecipeError(
            f"'{file}' describes a LogitScore of '{config['module_input_name']}', which is not supported."
        )
    return found


def _chat(transformer: dict[str, Any]) -> PairChat | None:
    message = (transformer.get("modality_config") or {}).get("message")
    if message is None:
        return None
    given = dict((transformer.get("processing_kwargs") or {}).get("chat_template") or {})
    opens = bool(given.pop("add_generation_prompt", False))
    return PairChat(message.get("format") == "structured", TemplateOptions(opens, variables=given))
