"""Real chat templates: each is of a family, and what it writes of a call is what the reader reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.chat_template.child import RENDERED, Templates
from backends.chat_template.messages import function
from backends.chat_template.template import PROBE_TOOL, STYLES, called, renders_call
from backends.native.tools.families.table import find_form
from tests.backends.native.tools.written import TIME, WEATHER, calls_of, read

FOLDER = Path(__file__).parents[1] / "templates"
LONGEST = 10**6
FAMILIES = {
    "deepseek_r1_distill": ("deepseek_v3", "<think>"),
    "deepseek_v3_2": ("deepseek_v3_2", "<think>"),
    "functionary_v3_1": ("functionary_v3_1", None),
    "functionary_v3_2": ("functionary_v3_2", None),
    "gpt_oss": ("harmony", "<|channel|>analysis<|message|>"),
    "granite_3_3": ("granite", "<think>"),
    "kimi_k2": ("kimi_k2", None),
    "mistral_nemo": ("mistral_list", None),
    "mistral_small_3_2": ("mistral", None),
    "qwen3": ("hermes", "<think>"),
    "seed_oss": ("seed_oss", "<seed:think>"),
    "vllm_deepseekr1": ("deepseek_v3", "<think>"),
    "vllm_deepseekv3": ("deepseek_v3", None),
    "vllm_deepseekv31": ("deepseek_v3_1", "<think>"),
    "vllm_granite": ("granite", None),
    "vllm_hermes": ("hermes", None),
    "vllm_llama3_1_json": ("llama3_json", None),
    "vllm_llama3_2_pythonic": ("pythonic", None),
    "vllm_llama4_pythonic": ("pythonic", None),
    "vllm_mistral_parallel": ("mistral_list", None),
    "vllm_phi4_mini": ("phi4_functools", None),
    "vllm_qwen3coder": ("qwen3_coder", None),
    "vllm_toolace": ("pythonic", None),
}
# These render no calls, or not as they ask the model to write them, or change the prompt behind them.
NOT_WRITTEN = {"deepseek_r1_distill", "granite_3_3", "vllm_phi4_mini", "vllm_mistral_parallel"}


def test_every_template_is_listed() -> None:
    assert {path.stem for path in FOLDER.glob("*.jinja")} == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_is_of_its_family(name: str) -> None:
    form = find_form((FOLDER / f"{name}.jinja").read_text())
    reasoning = form.family.reasoning
    assert (form.family.name, reasoning.opens if reasoning else None) == FAMILIES[name]
    assert form.generic is (name == "deepseek_r1_distill")
    assert form.can_call


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - NOT_WRITTEN))
def test_the_calls_of_a_conversation_are_read_as_they_are_rendered(name: str) -> None:
    source = (FOLDER / f"{name}.jinja").read_text()
    templates = Templates({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})
    tools = list(map(function, (WEATHER, TIME)))
    values = {"city": "Paris", "days": 2}

    def renders(style: object) -> bool:
        try:
            return renders_call(RENDERED, templates.render(called(style), [PROBE_TOOL], LONGEST))  # type: ignore[arg-type]
        except Exception:  # a template raises what it wants
            return False

    style = next(filter(renders, STYLES))
    called_function = {"name": "get_weather", "arguments": style.arguments(json.dumps(values))}
    user = {"role": "user", "content": "The weather?"}
    call = {"id": style.id("call_0123456789abcdef01234567"), "type": "function", "function": called_function}
    turn = {"role": "assistant", "tool_calls": [call]} | ({"content": ""} if style.empty_content else {})
    asked = templates.render([user], tools, LONGEST).decode()
    answered = templates.render([user, turn], tools, LONGEST, opens_answer=False).decode()
    same = next(place for place in range(len(answered)) if asked[place : place + 1] != answered[place])
    choice = read(find_form(source).family, answered[same:])
    expected = {"city": "Paris", "days": 2}
    assert calls_of(choice) == [("get_weather", expected)]
