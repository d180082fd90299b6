"""Constraints that vLLM's and SGLang's clients know, on the bundled model: an EBNF, and words that must not appear."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from adapters.fold import fold
from backends.native.backend import NativeBackend
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, Generate, Grammar, Message, Sampling, Stopping, TemplateOptions, Tool
from tests.backends import laws

pytestmark = pytest.mark.torch

module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[NativeBackend]:
    options = {"engine": "inprocess", "threads": 1, "max_sequences": 8, "kv_tokens": 4096, "dtype": "float32"}
    backend = NativeBackend("native", options)
    await backend.start()
    yield backend
    await backend.aclose()


async def ask(backend: NativeBackend, text: str, **fields: Any) -> str:
    fields = {"sampling": Sampling(temperature=0), "stopping": Stopping(60)} | fields
    asked = Generate(id="r", model="demo", prompts=(ChatPrompt((Message("user", text),)),), **fields)
    return fold(await laws.collect(backend.generate(asked))).choices[0].text


@module_loop
async def test_a_begun_answer_is_continued(backend: NativeBackend) -> None:
    whole = await ask(backend, "What is the capital of France?")
    begun, space, end = whole.rpartition(" ")
    turns = (Message("user", "What is the capital of France?"), Message("assistant", begun))
    prompt = ChatPrompt(turns, TemplateOptions(add_generation_prompt=False, continue_final_message=True))
    asked = Generate(id="r", model="demo", prompts=(prompt,), sampling=Sampling(temperature=0), stopping=Stopping(60))
    rest = fold(await laws.collect(backend.generate(asked))).choices[0].text
    assert rest == space + end


@module_loop
@pytest.mark.parametrize("ebnf", ['root ::= "yes" | "no"', 'start: "yes" | "no"'])
async def test_an_ebnf_in_either_notation(backend: NativeBackend, ebnf: str) -> None:
    assert await ask(backend, "Is water wet?", grammar=Grammar("ebnf", ebnf)) in ("yes", "no")


@module_loop
@pytest.mark.parametrize("ebnf", ["root ::= (", "start: missing", "x" * 200_000])
async def test_a_wrong_ebnf_is_refused(backend: NativeBackend, ebnf: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await ask(backend, "Hi", grammar=Grammar("ebnf", ebnf))
    assert raised.value.param == "response_format"


@module_loop
async def test_bad_words_do_not_appear(backend: NativeBackend) -> None:
    question = "What is the capital of France?"
    assert "Paris" in await ask(backend, question)
    for words in (("Paris",), ("Par", "is", "/", "a.b", "\n", "(")):
        answer = await ask(backend, question, sampling=Sampling(temperature=0, bad_words=words))
        assert not [word for word in words if word in answer], answer


@module_loop
@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": Grammar("regex", "a+")},
        {"tools": (Tool("f"),)},
        {"stopping": Stopping(9, min_new_tokens=2)},
        {"stopping": Stopping(9, ignore_eos=True)},
    ],
    ids=str,
)
async def test_bad_words_beside_another_constraint_are_refused(backend: NativeBackend, fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFeature) as raised:
        await ask(backend, "Hi", sampling=Sampling(temperature=0, bad_words=("x",)), **fields)
    assert raised.value.param == "bad_words"
