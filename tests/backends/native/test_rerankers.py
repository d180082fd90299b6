"""Which folders are of language models that rank, and how the option names what others need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.native.backend import NativeBackend
from backends.native.options import problems_of, read_options
from backends.native.rerankers import KNOWN, Reranker, fill, find_reranker
from backends.native.sentence_transformers import RecipeError


def folder(parent: Path, name: str, model_type: str = "qwen3", head: str = "ForCausalLM", **more: Any) -> str:
    made = parent / name
    made.mkdir(parents=True)
    config = {"architectures": [f"Some{head}"], "model_type": model_type} | more
    (made / "config.json").write_text(json.dumps(config))
    return str(made)


@pytest.mark.parametrize(
    ("name", "model_type", "known"),
    [
        ("Qwen3-Reranker-0.6B", "qwen3", "qwen3"),
        ("models--Qwen--Qwen3-Reranker-8B/snapshots/5fa94080", "qwen3", "qwen3"),
        ("mxbai-rerank-large-v2", "qwen2", "mxbai_v2"),
        ("bge-reranker-v2-gemma", "gemma", "bge_gemma"),
    ],
)
def test_known_models_are_recognized_by_their_name(name: str, model_type: str, known: str, tmp_path: Path) -> None:
    made = folder(tmp_path, name, model_type)
    assert find_reranker(made) == KNOWN[known]
    assert find_reranker(made, "none") is None
    assert NativeBackend("b", {"model": made}).capabilities.generates is False
    (Path(made) / "modules.json").write_text("[]")
    assert find_reranker(made) is None  # it says itself how it is asked


def test_other_folders(tmp_path: Path) -> None:
    assert find_reranker(folder(tmp_path, "Qwen3-0.6B")) is None
    assert find_reranker(str(tmp_path / "nowhere")) is None
    assert find_reranker(folder(tmp_path, "Qwen3-Reranker-seq-cls", head="ForSequenceClassification")) is None
    assert find_reranker(folder(tmp_path, "mine", is_original_qwen3_reranker=True)) == KNOWN["qwen3"]
    for name, more in (("my-reranker", {}), ("mine-2", {"classifier_from_token": ["No", "Yes"]})):
        unknown = folder(tmp_path, name, "llama", **more)
        with pytest.raises(RecipeError, match="set `reranker` of the backend to a table with `prompt`"):
            find_reranker(unknown)
        found = [why for path, why in problems_of({"model": unknown}) if path == ("reranker",)]
        assert len(found) == 1
        assert not [path for path, _ in problems_of({"model": unknown, "reranker": "none"}) if path == ("reranker",)]
        assert find_reranker(unknown, "qwen3") == KNOWN["qwen3"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("qwen4", "one of auto, none, qwen3, mxbai_v2, bge_gemma"),
        ({"prompt": ["{query}"]}, "must end with {document}"),
        ({"prompt": ["{query} {document}."]}, "must end with {document}"),
        ({"prompt": ["{query}", "{document}", "{document}"]}, "no other may have it"),
        ({"prompt": ["{document}"]}, "a place for the {query}"),
        ({"prompt": ["{instruction} {query} {document}"]}, "needs an `instruction`"),
        ({"prompt": ["{query} {document}"], "answers": ["yes", "no", "?"]}, "at most two `answers`"),
        ({"prompt": ["{query} {document}"], "template": "x"}, "template"),
    ],
)
def test_what_could_not_be_asked_is_refused(given: Any, why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        read_options({"reranker": given})


def test_the_prompt_is_filled_once_and_an_empty_instruction_leaves_its_part_out() -> None:
    values = {"instruction": "", "query": "{document}", "document": "{query} {0}"}
    assert fill("{query} {x} {document}", values) == "{document} {x} {query} {0}"
    asked = Reranker(prompt=("{instruction}\n", "{query}", "{document}"))
    assert (asked.parts(""), asked.parts("find")) == (asked.prompt[1:], asked.prompt)
    assert asked.takes_instruction
    assert not Reranker(prompt=("{query}{document}",)).takes_instruction
