"""Chat templates rendered here: as transformers renders them, in a sandbox, with messages that are data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.remote.chat_template import ChatTemplate, find_source, find_special_tokens
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, ImagePart, Message, TextPart, Tool, ToolCall

DEMO = Path("backends/native/demo/weights")
TOOL = Tool("get_weather", "Weather é", {"type": "object", "properties": {"city": {"type": "string"}}})
CHAT = ChatPrompt(
    (
        Message("system", "Be <brief> & clear."),
        Message("user", (TextPart("What "), TextPart("is it?"))),
        Message("assistant", None, tool_calls=(ToolCall("c1", "get_weather", '{"city": "Paris"}'),)),
        Message("tool", '{"degrees": 5}', tool_call_id="c1"),
        Message("user", "And?"),
    )
)


@pytest.mark.torch
def test_the_bundled_template_as_transformers_renders_it() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    source = find_source(None, DEMO)
    assert source is not None
    rendered = ChatTemplate(source, find_special_tokens(DEMO)).render(CHAT, (TOOL,))
    turns = [
        {"role": "system", "content": "Be <brief> & clear."},
        {"role": "user", "content": "What is it?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
                }
            ],
        },
        {"role": "tool", "content": '{"degrees": 5}', "tool_call_id": "c1"},
        {"role": "user", "content": "And?"},
    ]
    function = {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.parameters}
    assert rendered.text == tokenizer.apply_chat_template(
        turns, tools=[{"type": "function", "function": function}], tokenize=False, add_generation_prompt=True
    )


LOOP = (
    "{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (LOOP, '<system>Be <brief> & clear.<user>What is it?<assistant>None<tool>{"degrees": 5}<user>And?'),
        (
            "{% for m in messages %}\n    {% if loop.first %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}",
            "Be <brief> & clear.\n",
        ),
        ("{% generation %}{{ bos_token }}x{% endgeneration %}", "<s>x"),
        ("{{ messages[0] | tojson }}", '{"role": "system", "content": "Be <brief> & clear."}'),
        (
            "{{ tools[0].function | tojson }}",
            json.dumps(
                {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.parameters}, ensure_ascii=False
            ),
        ),
        ("{{ strftime_now('%Y')[:2] }}", "20"),
        ("{{ messages[2].name is defined }}", "False"),
    ],
)
def test_what_templates_may_use(source: str, text: str) -> None:
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(CHAT, (TOOL,)).text == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('Roles must alternate.') }}",
        "{{ messages[0].content + 5 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ cycler.__init__.__globals__.os }}",
    ],
)
def test_what_a_template_rejects_is_the_clients_error(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template rejects"):
        ChatTemplate(source).render(CHAT)


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% unknown %}"])
def test_what_is_no_template(source: str) -> None:
    with pytest.raises(ValueError, match="chat template"):
        ChatTemplate(source)


@pytest.mark.parametrize("text", ["<|im_end|>", "[/INST]", "</s>"])
def test_a_control_token_in_a_message_is_refused(text: str) -> None:
    template = ChatTemplate("{% for m in messages %}<|im_start|>[INST]{{ m.content }}[/INST]</s><|im_end|>{% endfor %}")
    with pytest.raises(InvalidRequest, match="control token"):
        template.render(ChatPrompt((Message("user", f"a{text}"),)))
    assert ChatTemplate("{{ messages[0].content }}", control_tokens=["END"]).render(
        ChatPrompt((Message("user", text),))
    )


def test_images_are_beside_the_text_where_the_template_has_a_place_for_them() -> None:
    image = ImagePart("data:,", "data")
    chat = ChatPrompt((Message("user", (TextPart("What?"), image)),))
    parts = (
        "{% for p in messages[0].content %}{% if p.type == 'image' %}<img>{% else %}{{ p.text }}{% endif %}{% endfor %}"
    )
    rendered = ChatTemplate(parts).render(chat)
    assert (rendered.text, rendered.images) == ("What?<img>", (image,))
    with pytest.raises(UnsupportedFeature):
        ChatTemplate("{{ messages[0].content }}").render(chat)


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
