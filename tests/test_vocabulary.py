"""One word per concept: retired words do not return. `docs/glossary.md` lists the words in use."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

RETIRED = {
    "another_may_answer": "is_failover_eligible",
    "be_patient": "name the timeout by what it bounds",
    "cache tier": "per-sequence execution path",
    "cache_tier": "per-sequence execution path",
    "class exchange": "RequestHandler, RequestContext or InFlightRequest",
    "doomed": "quarantined",
    "face": "codec",
    "fast tier": "packed execution path",
    "fast_tier": "packed execution path",
    "few_rows": "gemv",
    "fusing": "fusion, module replacement",
    "guilty": "poison request",
    "hear_out": "drain",
    "heed": "read, apply",
    "heeded": "read, applied",
    "impatience": "name the timeout by what it bounds",
    "impatient": "name the timeout by what it bounds",
    "likeliest": "top-k",
    "likeness": "agreement",
    "patience": "name the timeout by what it bounds",
    "picture": "image",
    "pictures": "images",
    "put_on": "inject_lora",
    "quantisation": "quantization",
    "quantise": "quantize",
    "quantised": "quantized",
    "quantising": "quantizing",
    "recall": "feedback store",
    "reception": "disconnect watcher",
    "sort_out": "drain",
    "strike": "inject_fault",
    "suspect": "quarantined request, request to be tried alone",
    "tally": "counters",
    "told": "sent, logged, returned, reported or known: whichever it is",
    "untold": "not sent, not reported",
    "whole_layer": "fused decoder layer",
    "wrong_split": "sample-ratio mismatch",
}
"""Retired word: what to write instead."""

EXEMPT = (
    "tests/test_vocabulary.py",  # this list
    "tools/demo_model/*",  # training data: the weights were trained on these sentences
    "tests/tools/demo_model/*",
    "backends/native/demo/*",
    "docs/demo-model.md",
    "tests/golden/*",  # recorded bytes
    "tests/clients/node/*",
    "gateway/http/docs/swagger-ui/*",  # another project's
    "gateway/http/ui/vendor/*",  # other projects'
)
FORMER_OPTIONS = {
    ("CHANGELOG.md", "patience"),
    ("backends/native/options.py", "patience"),
    ("tests/backends/native/test_options.py", "patience"),
}
"""Files that must name an option's former key, which configurations may still have, and that key."""

ALLOWED = {
    "hugging face": "a name",
    "hugging_face": "the same in CamelCase",
    "what is in the picture?": "a prompt: the demo model was trained on it",
    "how many shapes are in the picture?": "a prompt: the demo model was trained on it",
}
"""Exact phrase, in lower case: why it keeps a retired word."""

SUFFIXES = {".py", ".md", ".toml", ".js", ".html", ".css", ".cpp", ".h", ".mk", ".txt"}


def sources() -> list[str]:
    """The tracked text files that are checked."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [
        name
        for name in listed
        if (Path(name).suffix in SUFFIXES or name == "Makefile")
        and (ROOT / name).exists()
        and not any(Path(name).match(pattern) or name.startswith(pattern.rstrip("*")) for pattern in EXEMPT)
    ]


def words(text: str) -> str:
    """The text in lower case: identifiers are split at capitals, underscores stay, and `ALLOWED` phrases are blank."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    for phrase in ALLOWED:
        text = text.replace(phrase, " " * len(phrase))
    return text


PATTERN = re.compile(r"(?<![a-z0-9])(" + "|".join(RETIRED) + r")(?![a-z0-9])")


def retired(name: str) -> Iterator[str]:
    """The retired words of a file: each with its line and what to write instead."""
    text = words((ROOT / name).read_text())
    if any(word in text for word in RETIRED):  # the pattern is ten times slower
        for at in PATTERN.finditer(text):
            if (name, at[1]) not in FORMER_OPTIONS:
                yield f"{name}:{text.count(chr(10), 0, at.start()) + 1}: {at[1]} -> {RETIRED[at[1]]}"


@pytest.mark.slow
def test_no_retired_word() -> None:
    found = [line for name in sources() for line in retired(name)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("what_was_told", "told"),
        ("WholeLayer", "whole_layer"),
        ("a picture of", "picture"),
        ("class Exchange:", "class exchange"),
    ],
)
def test_words_within_identifiers_are_found(text: str, word: str) -> None:
    assert PATTERN.search(words(text))[1] == word  # type: ignore[index]


def test_an_allowed_phrase_is_skipped_and_the_same_word_elsewhere_is_found() -> None:
    found = PATTERN.findall(words('ask("What is in the picture?")  # about a picture'))
    assert found == ["picture"]
