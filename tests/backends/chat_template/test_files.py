"""Where chat templates and special tokens are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.chat_template.files import find_source, find_special_tokens


def test_where_templates_are_found(tmp_path: Path) -> None:
    assert find_source(None, None) is None
    assert find_source("{{ x }}", tmp_path) == "{{ x }}"
    assert find_source(None, tmp_path) is None
    (tmp_path / "chat_template.json").write_text('{"chat_template": "{{ c }}"}')
    assert find_source(None, tmp_path) == "{{ c }}"
    named = [{"name": "rag", "template": "{{ a }}"}, {"name": "default", "template": "{{ b }}"}]
    config = {"chat_template": named, "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert find_source(None, tmp_path) == "{{ b }}"
    assert find_special_tokens(tmp_path) == {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "chat_template.jinja").write_text("{{ d }}")
    assert find_source(None, tmp_path) == "{{ d }}"
    assert find_source(str(tmp_path / "chat_template.jinja"), None) == "{{ d }}"
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ValueError, match="tokenizer_config"):
        find_special_tokens(tmp_path)
