"""Where a chat template and the special tokens that it names are found: in an option, or in a tokenizer's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


def find_source(option: str | None, tokenizer: Path | None) -> str | None:
    """The source of a chat template.

    Args:
        option: the template itself, or a file of it.
        tokenizer: a folder with a tokenizer, searched if there is no `option`.

    Raises:
        OSError: the file cannot be read.
        ValueError: a file is not of the expected form.
    """
    if option is not None:
        return option if "{%" in option or "{{" in option else Path(option).read_text()
    if tokenizer is None:
        return None
    if (file := tokenizer / "chat_template.jinja").is_file():
        return file.read_text()
    for name in ("tokenizer_config.json", "chat_template.json"):
        found = _read_json(tokenizer / name).get("chat_template")
        if isinstance(found, list):  # several named templates
            found = next((each.get("template") for each in found if each.get("name") == "default"), None)
        if isinstance(found, str):
            return found
    return None


def find_special_tokens(tokenizer: Path) -> dict[str, str]:
    """The special tokens that templates name, from a folder with a tokenizer."""
    config = _read_json(tokenizer / "special_tokens_map.json") | _read_json(tokenizer / "tokenizer_config.json")
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            tokens[name] = token
    return tokens


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"{file.name} cannot be read: {error}") from None
