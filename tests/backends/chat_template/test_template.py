"""Chat templates are rendered as transformers renders them, within limits that no template gets around."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from backends.chat_template import ChatTemplate
from backends.chat_template.limits import Limits
from backends.chat_template.template import CallStyle
from backends.native.demo import WEIGHTS
from schemas.errors import InvalidRequest
from schemas.prompts import TemplateOptions

DEMO = Path(WEIGHTS, "chat_template.jinja").read_text(encoding="utf-8")
STRICT = Limits(seconds=0.06, memory=64 << 20, output_bytes=1 << 20)
HI = [{"role": "user", "content": "Hi"}]

Make = Callable[..., ChatTemplate]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[ChatTemplate] = []

    def _make(*args: Any, **kwargs: Any) -> ChatTemplate:
        made.append(ChatTemplate(*args, **kwargs))
        return made[-1]

    yield _make
    for template in made:
        template.close()


def child_of(template: ChatTemplate) -> Any:
    child = template._short._child
    return child._process if child is not None else None


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
BOMBS = {
    "multiplied string": "{{ 'a' * 300000000 }}",
    "multiplied at run time": "{{ messages[0].content * 300000000 }}",
    "multiplied list": "{{ ([messages] * 100000000) | length }}",
    "nested ranges": LOOP,
    "nested ranges with output": "{% for i in range(9999) %}{% for j in range(9999) %}aaaa{% endfor %}{% endfor %}",
    "power": "{{ (10 ** (10 ** 9)) % 7 }}",
    "power at run time": "{% set n = 8 + messages | length %}{{ (n ** (n ** n)) % 7 }}",
    "shifted product": "{% set ns = namespace(n=9) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "doubled string": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubled by ~": "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubled list": "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "replace": "{% set ns = namespace(s='a') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s.replace('a', 'aaaaaaaaaaaaaaaa') %}{% endfor %}",
    "format's width": "{{ '%999999999d' % 1 }}",
    "format method": "{{ '{:>999999999}'.format(1) }}",
    "center": "{{ 'a' | center(999999999) }}",
    "ljust": "{{ 'a'.ljust(999999999) }}",
    "zfill": "{{ 'a'.zfill(999999999) }}",
    "expandtabs": "{{ '\\t'.expandtabs(999999999) }}",
    "indent": "{{ ('a\\n' * 1000) | indent(999999) }}",
    "tojson's indent": "{{ [[[1]]] | tojson(indent=999999999) }}",
    "lipsum": "{{ lipsum(n=9999999) }}",
    "batch": "{{ [1] | batch(999999999, 'x') | list | length }}",
    "sum of lists": "{{ (range(99999) | map('list') | list) if false else (range(99999) | list) * 9999 }}",
    "recursive macro": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "wide recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "long literal": "{% set x = " + "(" * 5000 + "1" + ")" * 5000 + " %}",
    "joined blocks": "{% set x %}{% for i in range(9999) %}aaaaaaaaaaaaaaaa{% endfor %}{% endset %}"
    "{% for i in range(9999) %}{{ x }}{% endfor %}",
    "regular expression": "{{ ('<' * 200000) | striptags }}",
    "urlize": "{{ ('www.' * 400000) | urlize }}",
    "sorted product": "{% for a in range(9999) | sort %}{% for b in range(9999) | sort(reverse=true) %}"
    "{% endfor %}{% endfor %}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_is_refused(name: str, make: Make) -> None:
    template = make("{{ messages[0].content }}" + BOMBS[name], limits=STRICT)
    # A few end within the limits, with nothing or with an error; none gets through with more.
    text = ""
    with suppress(InvalidRequest):
        text = await template.render(HI)
    assert len(text) < STRICT.output_bytes


@pytest.mark.slow
async def test_an_allocation_is_refused_and_the_child_goes_on(make: Make) -> None:
    template = make("{% if messages | length == 2 %}{{ messages[0].content * 300000000 }}{% endif %}ok")
    assert await template.render(HI) == "ok"
    child = child_of(template)
    with pytest.raises(InvalidRequest, match="more time or memory"):
        await template.render(HI * 2)
    assert await template.render(HI) == "ok"
    assert child_of(template) is child


@pytest.mark.slow
async def test_a_child_that_computes_too_long_is_killed_and_replaced(make: Make) -> None:
    template = make(
        "{% if messages | length == 2 %}" + LOOP + "{% endif %}ok",
        limits=STRICT,
    )
    assert await template.render(HI) == "ok"
    child = child_of(template)
    bomb, patient = asyncio.create_task(template.render(HI * 2)), asyncio.create_task(template.render(HI))
    with pytest.raises(InvalidRequest, match="more time or memory"):
        await bomb
    assert await patient == "ok"
    assert child.returncode in (-signal.SIGPROF, -signal.SIGKILL)


@pytest.mark.slow
async def test_a_cancelled_chat_neither_blocks_nor_harms_the_next_one(make: Make) -> None:
    source = "{% if messages | length == 2 %}" + LOOP + "{% endif %}{{ messages[0].content }}"
    template = make(source, limits=STRICT)
    for chat in (HI, HI * 2):
        reader = asyncio.create_task(template.render(chat))
        await asyncio.sleep(0.01)
        reader.cancel()
        await asyncio.wait([reader])
        assert await template.render([{"role": "user", "content": "mine"}]) == "mine"


@pytest.mark.slow
async def test_a_child_that_was_killed_is_replaced(make: Make) -> None:
    template = make("{{ messages[0].content }}")
    assert await template.render(HI) == "Hi"
    os.kill(child_of(template).pid, signal.SIGKILL)
    with pytest.raises(InvalidRequest):
        await template.render(HI)
    assert await template.render(HI) == "Hi"


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}", "{% set n = namespace(_a=1) %}"]
)
async def test_the_sandbox_holds(source: str, make: Make) -> None:
    with pytest.raises(InvalidRequest):
        await make(source).render(HI)


@pytest.mark.slow
async def test_a_template_that_is_no_template_refuses_chats(make: Make) -> None:
    template = make("{% for %}")
    with pytest.raises(InvalidRequest, match="template rejects"):
        await template.render(HI)
    with pytest.raises(InvalidRequest):
        await template.render([])


@pytest.mark.slow
async def test_values_pass_unchanged(make: Make) -> None:
    template = make("{{ messages[0].content | tojson }}{{ bos }}{{ tools is none }}", {"bos": "<s>"})
    for value in ("🙂", "\u2028\0", [1, 1e300, None, True], {"ключ": 'a"b'}, 2**70):
        text = await template.render([{"role": "user", "content": value}])
        assert text == json.dumps(value, ensure_ascii=False) + "<s>True"
    assert await template.render([{"role": "user", "content": "\ud800"}]) == '"?"<s>True', "a lone surrogate"


@pytest.mark.slow
async def test_a_long_chat_has_a_child_of_its_own(make: Make) -> None:
    template = make("{{ messages[0].content }}")
    long = "word " * 100_000
    assert await template.render([{"role": "user", "content": long}]) == long
    assert child_of(template) is None


@pytest.mark.slow
async def test_the_template_for_tools_is_used_with_tools(make: Make) -> None:
    template = make({"default": "plain", "tool_use": "{{ tools[0].function.name }}"})
    assert await template.render(HI) == "plain"
    assert await template.render(HI, [{"type": "function", "function": {"name": "f"}}]) == "f"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2)")
async def test_a_stopped_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, signal\n"
        "from backends.chat_template import ChatTemplate\n"
        "async def main():\n"
        "    template = ChatTemplate('x')\n"
        "    await template.render([{'role': 'user', 'content': 'Hi'}])\n"
        "    os.kill(template._short._child._process.pid, signal.SIGSTOP)\n"
        "    print(template._short._child._process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    pid = int((await parent.communicate())[0])
    while _runs(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": HI},
    "system and answers": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            *HI,
            {"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."},
            {"role": "user", "content": "<b>&amp;\n  spaces  "},
        ]
    },
    "tools": {
        "messages": HI,
        "tools": [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"a": [1, "é"]}}}],
    },
}
TEMPLATES = {
    "demo": DEMO,
    "whitespace": "  {% for m in messages %}\n"
    "  {%- if loop.first %}\n a {{ m['content'] }} \n{% endif %}\n{% endfor %}\n",
    "loop controls": "{% for m in messages %}"
    "{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "tojson": "{{ messages | tojson }}{{ tools | tojson(indent=2) }}{{ messages[0] | tojson(sort_keys=true) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}",
    "names": "{{ bos_token }}{{ eos_token }}{{ documents is none }}{{ add_generation_prompt }}{{ nothing is defined }}",
    "namespace": "{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}{{ dict(a=1) }}{{ dict.fromkeys('ab') }}",
}


@pytest.mark.torch
@pytest.mark.parametrize("name", TEMPLATES)
async def test_the_text_is_that_of_transformers(name: str, make: Make) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS, local_files_only=True)
    template = make(TEMPLATES[name], tokenizer.special_tokens_map)
    for chat in CHATS.values():
        expected = tokenizer.apply_chat_template(
            chat["messages"],
            tools=chat.get("tools"),
            chat_template=TEMPLATES[name],
            add_generation_prompt=True,
            tokenize=False,
        )
        assert await template.render(chat["messages"], chat.get("tools", ())) == expected


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if mood %}{{ mood }}{{ name }}{% endif %}{% endif %}"
)
TURNS = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, "}]
ASKED = "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "end"),
    [
        (TemplateOptions(), "One, two,<|im_end|>\n<|im_start|>assistant\n"),
        (TemplateOptions(add_generation_prompt=False), "One, two,<|im_end|>\n"),
        (TemplateOptions(add_generation_prompt=False, continue_final_message=True), "One, two,"),
        (
            TemplateOptions(variables={"mood": "glad", "name": "x"}),
            "One, two,<|im_end|>\n<|im_start|>assistant\ngladours",
        ),
        (
            TemplateOptions(variables={"messages": [], "add_generation_prompt": False}),
            "One, two,<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
async def test_where_the_text_ends_and_the_clients_variables(options: TemplateOptions, end: str) -> None:
    template = ChatTemplate(CHATML, {"name": "ours"})
    try:
        assert await template.render(TURNS, (), options) == ASKED + end
    finally:
        template.close()


@pytest.mark.slow
async def test_a_message_that_is_not_rendered_cannot_be_continued() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    options = TemplateOptions(add_generation_prompt=False, continue_final_message=True)
    try:
        with pytest.raises(InvalidRequest, match="cannot be continued"):
            await template.render(TURNS, (), options)
    finally:
        template.close()


@pytest.mark.slow
def test_the_template_says_what_it_takes() -> None:
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}!{% endif %}")
    assert (plain.takes_system, plain.call_style) == (True, CallStyle())
    assert "enable_thinking" in plain.variables
    strict = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content + '' }}"
        "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert (strict.takes_system, strict.call_style) == (False, CallStyle(True, True, True))
