"""Models whose templates know no tools, or whose prompts open reasoning: the bundled weights under other templates."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from adapters.fold import fold
from backends.native.backend import NativeBackend
from backends.native.demo import WEIGHTS
from schemas.completion import Choice, Completion
from schemas.ir import (
    ChatPrompt,
    FinishReason,
    Generate,
    Grammar,
    Message,
    Sampling,
    Stopping,
    Tokenize,
    ToolCall,
    ToolChoice,
)
from tests.backends import laws
from tests.backends.native.tools.written import TIME, WEATHER

pytestmark = [pytest.mark.torch, pytest.mark.slow]
module_loop = pytest.mark.asyncio(loop_scope="module")

PLAIN = (
    "{% for m in messages %}"
    "{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('role') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "<|assistant|>{% if enable_thinking %}<think>\n{% endif %}"
)


async def start(folder: Path, **options: Any) -> NativeBackend:
    shutil.copytree(WEIGHTS, folder)
    (folder / "chat_template.jinja").write_text(PLAIN)
    engine = {"engine": "inprocess", "threads": 1, "max_sequences": 8, "kv_tokens": 4096, "dtype": "float32"}
    backend = NativeBackend("native", {"model": str(folder), **engine, **options})
    await backend.start()
    return backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NativeBackend]:
    backend = await start(tmp_path_factory.mktemp("models") / "plain")
    yield backend
    await backend.aclose()


async def ask(backend: NativeBackend, *messages: Message, **fields: Any) -> Completion:
    asked = messages or (Message("user", "What is the weather in Paris?"),)
    fields = {"sampling": Sampling(temperature=0), "stopping": Stopping(120)} | fields
    request = Generate(id="r", model="demo", prompts=(ChatPrompt(asked),), raw_prompt=False, **fields)
    return fold(await laws.collect(backend.generate(request)))


async def choice(backend: NativeBackend, *messages: Message, **fields: Any) -> Choice:
    return (await ask(backend, *messages, **fields)).choices[0]


@module_loop
@pytest.mark.parametrize("stream", [False, True])
async def test_a_template_without_tools_gets_them(backend: NativeBackend, stream: bool) -> None:
    tools = (WEATHER, TIME)
    for wanted, names in (
        (ToolChoice("required"), {"get_weather", "get_time"}),
        (ToolChoice("named", ("get_time",)), {"get_time"}),
    ):
        for seed in range(2):
            sampling = Sampling(temperature=1.2, seed=seed)
            answer = await choice(backend, tools=tools, tool_choice=wanted, sampling=sampling, stream=stream)
            assert (answer.text, answer.reason) == ("", FinishReason.TOOL_CALL)
            for call in answer.tool_calls:
                assert call.name in names
                schema = WEATHER.parameters if call.name == "get_weather" else {"maxProperties": 0}
                jsonschema.validate(json.loads(call.arguments), schema or {})


@module_loop
async def test_a_conversation_with_calls_is_rendered(backend: NativeBackend) -> None:
    called = Message("assistant", tool_calls=(ToolCall("call_1", "get_time", "{}"),))
    messages = (Message("user", "The time?"), called, Message("tool", "12:00", tool_call_id="call_1"))
    assert (await choice(backend, *messages, tools=(TIME,))).reason in (FinishReason.EOS, FinishReason.LENGTH)
    assert (await choice(backend, *messages)).tool_calls == ()
    text = (await backend.tokenize(Tokenize(id="r", model="m", prompt=ChatPrompt(messages), tools=(TIME,)))).text
    assert '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>' in text
    assert "<|user|><tool_response>\n12:00\n</tool_response><|end|>" in text


@module_loop
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_that_the_prompt_opens_is_apart(backend: NativeBackend, stream: bool) -> None:
    hints = {"reasoning_effort": "high"}
    thought = await ask(backend, hints=hints, stopping=Stopping(12), stream=stream)
    assert thought.choices[0].text == ""
    assert thought.choices[0].reasoning
    assert thought.usage.reasoning_tokens
    # A format binds what follows the reasoning.
    grammar = Grammar("regex", "yes|no")
    for seed in range(2):
        sampling = Sampling(temperature=1.0, seed=seed)
        answer = await choice(backend, hints=hints, grammar=grammar, sampling=sampling, stopping=Stopping(100))
        assert answer.text in ("yes", "no") or answer.reason is FinishReason.LENGTH
        assert not answer.text or answer.reasoning
    assert not (await ask(backend, hints={"reasoning_effort": "none"})).choices[0].reasoning


@module_loop
async def test_hints_without_effect_are_named(backend: NativeBackend) -> None:
    chat = ChatPrompt((Message("user", "Hi"),))
    asked = Generate(id="r", model="m", prompts=(chat,), hints={"reasoning_effort": "low"}, unknown=("foo",))
    assert backend.ignored(asked) == ("foo",)


async def test_tools_can_be_turned_off(tmp_path: Path) -> None:
    backend = await start(tmp_path / "off", tool_format="none", reasoning_format="none")
    try:
        assert backend._text is not None
        assert not backend._text.can_call
        assert not backend._text.form.opens_reasoning("<think>\n")
    finally:
        await backend.aclose()
