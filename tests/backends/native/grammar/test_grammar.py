"""Grammars: which ones are rejected with which reason, and the bundled model's answers under the others."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator
from threading import Event
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from backends.base import Feature
from backends.native.backend import NativeBackend
from backends.native.grammar.grammar import GrammarCheck, grammar_source, text_without
from backends.native.grammar.schema_limits import check_schema
from schemas.completion import Choice
from schemas.errors import InvalidRequest, Overloaded
from schemas.ir import ChatPrompt, FinishReason, Generate, Grammar, Message, Sampling, Stopping
from tests.backends import laws

pytestmark = pytest.mark.torch

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[NativeBackend]:
    options = {"engine": "inprocess", "threads": 1, "max_sequences": 8, "kv_tokens": 4096}
    backend = NativeBackend("native", options)
    await backend.start()
    yield backend
    await backend.aclose()


module_loop = pytest.mark.asyncio(loop_scope="module")


async def ask(backend: NativeBackend, grammar: Grammar, **fields: Any) -> tuple[Choice, ...]:
    fields = {"sampling": Sampling(temperature=1.0, seed=7), "stopping": Stopping(300)} | fields
    prompts = (ChatPrompt((Message("user", "Tell me about Anna."),)),)
    asked = Generate(id="r", model="demo", prompts=prompts, grammar=grammar, **fields)
    return laws.check(await laws.collect(backend.generate(asked)), asked).choices


@module_loop
async def test_an_answer_follows_its_schema(backend: NativeBackend) -> None:
    assert Feature.GRAMMAR in backend.capabilities.features
    for choice in await ask(backend, Grammar("json_schema", PERSON), n=4):
        assert choice.reason is FinishReason.EOS
        jsonschema.validate(json.loads(choice.text), PERSON)


@module_loop
async def test_an_answer_follows_its_regex(backend: NativeBackend) -> None:
    for choice in await ask(backend, Grammar("regex", r"(yes|no), [A-Z][a-z]{2,5}\.[0-9]{1,3}/\d"), n=4):
        assert re.fullmatch(r"(yes|no), [A-Z][a-z]{2,5}\.[0-9]{1,3}/\d", choice.text)


@module_loop
async def test_json_object_allows_any_object(backend: NativeBackend) -> None:
    for choice in await ask(backend, Grammar("json_object"), n=4, sampling=Sampling(temperature=0.7, seed=1)):
        if choice.reason is FinishReason.EOS:
            assert isinstance(json.loads(choice.text), dict)
        else:
            assert choice.reason is FinishReason.LENGTH


@module_loop
async def test_an_answer_cut_by_the_length_has_that_reason(backend: NativeBackend) -> None:
    (choice,) = await ask(backend, Grammar("json_schema", PERSON), stopping=Stopping(5))
    assert (choice.reason, choice.generated) == (FinishReason.LENGTH, 5)


@module_loop
async def test_the_end_of_the_grammar_ends_the_text(backend: NativeBackend) -> None:
    stopping = Stopping(50, min_new_tokens=40, ignore_eos=True)
    (choice,) = await ask(backend, Grammar("regex", "a|b"), stopping=stopping)
    assert (choice.text in "ab", choice.reason) == (True, FinishReason.EOS)


@module_loop
async def test_sequences_with_different_grammars_share_a_batch(backend: NativeBackend) -> None:
    grammars = [Grammar("json_schema", PERSON), Grammar("regex", "[ab]{20}"), Grammar("json_schema", PERSON)]
    alone = [await ask(backend, grammar) for grammar in grammars]
    assert await asyncio.gather(*(ask(backend, grammar) for grammar in grammars)) == alone


@module_loop
@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        (Grammar("json_schema", {"not": {"type": "string"}}), '"not"'),
        (Grammar("json_schema", {"properties": {"a": {"type": "array", "uniqueItems": True}}}), '"uniqueItems"'),
        (Grammar("json_schema", {"if": {}, "then": {}}), '"if"'),
        (Grammar("json_schema", {"type": "string", "format": "postcode"}), "format: postcode"),
        (Grammar("json_schema", {"type": "thing"}), "type: thing"),
        (Grammar("json_schema", {"$ref": "http://example.org/s.json"}), "http://example.org/s.json"),
        (Grammar("json_schema", {"type": "string", "pattern": "a(?=b)"}), "look-around"),
        (Grammar("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}), "minimum (5)"),
        (Grammar("regex", "(a"), "unclosed group"),
        (Grammar("json_schema", {"multipleOf": True}), "multipleOf"),
        (Grammar("json_schema", {"type": "integer", "multipleOf": 9_999_991}), "multipleOf"),
        (Grammar("json_schema", {"allOf": [{"type": "integer", "multipleOf": m} for m in (997, 991)]}), "multipleOf"),
    ],
)
async def test_an_unsupported_grammar_is_rejected_with_the_reason(
    backend: NativeBackend, grammar: Grammar, named: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(named)) as raised:
        await ask(backend, grammar)
    assert raised.value.param == "response_format"


@module_loop
async def test_the_result_of_a_check_is_cached(backend: NativeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    text, ready = backend._require_started()
    grammars = text.grammars(ready.vocab_size, ready.eos_token_ids)
    assert grammars is not None
    compiled: list[str] = []
    real = grammars.compile
    monkeypatch.setattr(grammars, "compile", lambda source: compiled.append(source) or real(source))  # type: ignore[func-returns-value]
    check = GrammarCheck(grammars)
    right, wrong = (str(LLMatcher.grammar_from_regex(pattern)) for pattern in ("[a-z]+", "(a"))
    leaving = asyncio.create_task(check.check(right, "r"))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(*(check.check(right, "r") for _ in range(3)))
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="unclosed group"):
            await check.check(wrong, "r")
    check.close()
    await check.check(right, "r")  # from the cache, without a thread
    assert compiled == [right, wrong]


@module_loop
async def test_a_check_that_finds_no_thread_is_no_fault_of_the_grammar(
    backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, ready = backend._require_started()
    grammars = text.grammars(ready.vocab_size, ready.eos_token_ids)
    assert grammars is not None
    monkeypatch.setattr("backends.native.grammar.grammar._CHECK_TIMEOUT", 0.01)
    check, free = GrammarCheck(grammars), Event()
    busy = [check._threads.submit(free.wait) for _ in range(check._threads._max_workers)]
    source = str(LLMatcher.grammar_from_regex("[0-9]+"))
    with pytest.raises(Overloaded, match="too busy"):
        await check.check(source, "r")
    free.set()
    assert all(thread.result() for thread in busy)
    monkeypatch.setattr("backends.native.grammar.grammar._CHECK_TIMEOUT", 10.0)
    await check.check(source, "r")
    check.close()


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (nested(40), "nested"),
        ({"properties": {f"p{place}": {} for place in range(1001)}}, "1000 properties"),
        ({"enum": list(range(2001))}, "2000 enum values"),
        ({"description": "x" * 70_000}, "bytes"),
        ({"examples": [1] * 70_000}, "bytes"),
        ({"items": {"pattern": "(a{1000}){1000}"}}, "repetitions"),
        ({"patternProperties": {"(a{1000}){1000}": {}}}, "repetitions"),
        ({"properties": {f"p{place}": {"multipleOf": 600} for place in range(20)}}, "multipleOf"),
        ({"multipleOf": 0.7, "anyOf": [{"multipleOf": 11}, {"multipleOf": 13}]}, "multipleOf"),
        ({"items": {"$ref": "#/$defs/a", "multipleOf": 101}, "$defs": {"a": {"multipleOf": 103}}}, "multipleOf"),
        (True, "an object"),
        ({"properties": {"a": {"enum": [1, 2**53 + 1]}}}, "enum"),
        ({"maximum": 2**63}, "maximum"),
    ],
)
def test_a_schema_beyond_a_limit_is_rejected(schema: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        check_schema(schema, "response_format")
    check_schema({"properties": {f"p{place}": {"multipleOf": 991 + place} for place in range(9)}}, "response_format")
    check_schema(nested(30) | {"multipleOf": 0.01, "properties": {"multipleOf": {"multipleOf": 5}}}, "response_format")


def test_a_regex_beyond_a_limit_is_rejected() -> None:
    for pattern, why in (("a" * 70_000, "bytes"), ("(a{1000}){1000}", "repetitions")):
        with pytest.raises(InvalidRequest, match=why):
            grammar_source(Grammar("regex", pattern))


# --- any schema -------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "name", "x y", "ünï", 'q"', "z9"])
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-99, 99),
        st.integers(0, 500),
    ),
    st.builds(
        lambda low, size: {"type": "number", "minimum": low, "exclusiveMaximum": low + size, "multipleOf": 0.25},
        st.integers(-9, 9),
        st.integers(1, 50),
    ),
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
        st.integers(0, 3),
        st.integers(0, 6),
    ),
    st.sampled_from([{"type": "string", "pattern": p} for p in ("^[a-c]{2,4}$", "^(x|yy)+z$", r"^\d{3}-\d{2}$")]),
    st.sampled_from([{"type": "string", "format": f} for f in ("date", "time", "ipv4", "uuid")]),
    st.builds(
        lambda values: {"enum": values},
        st.lists(
            st.one_of(st.text(max_size=5), st.integers(-(2**53), 2**53), st.booleans(), st.none()),
            min_size=1,
            max_size=4,
        ),
    ),
    st.builds(lambda value: {"const": value}, st.text(max_size=8)),
    st.builds(
        lambda of: {"type": "integer", "multipleOf": of, "minimum": 0, "maximum": 1000}, st.sampled_from((2, 4, 5, 10))
    ),
)


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda properties, required, closed: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            "additionalProperties": False if closed else {"type": "boolean"},
        },
        st.dictionaries(NAMES, inner, min_size=1, max_size=4),
        st.sets(NAMES),
        st.sampled_from([True, True, True, False]),  # an open object often does not end
    )


def _inside(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.builds(
        lambda items, low, more: {"type": "array", "items": items, "minItems": low, "maxItems": low + more},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    choices = st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3))
    return _objects(inner) | arrays | choices


BATCHES = int(os.environ.get("SCHEMA_BATCHES", "24"))
"""Batches of 32 schemas each; most answers end before the length limit."""

SCHEMAS = _objects(st.recursive(LEAVES, _inside, max_leaves=6))


async def validate(backend: NativeBackend, schema: dict[str, Any], seed: int) -> FinishReason:
    """The reason why the answer under a schema ended; a complete answer is validated."""
    sampling = Sampling(temperature=1.0, seed=seed)
    (choice,) = await ask(backend, Grammar("json_schema", schema), sampling=sampling, stopping=Stopping(250))
    if choice.reason is FinishReason.EOS:
        jsonschema.validate(json.loads(choice.text), schema)
    return choice.reason


@pytest.mark.slow
def test_every_answer_validates() -> None:
    reasons: Counter[FinishReason] = Counter()
    with asyncio.Runner() as runner:
        backend = NativeBackend("native", {"engine": "inprocess", "threads": 1, "kv_tokens": 32_768})
        runner.run(backend.start())

        @settings(max_examples=BATCHES, phases=[Phase.generate], database=None)
        @given(st.lists(st.tuples(SCHEMAS, st.integers(0, 2**32)), min_size=32, max_size=32))
        def holds(cases: list[tuple[dict[str, Any], int]]) -> None:
            async def together() -> list[FinishReason]:
                return await asyncio.gather(*(validate(backend, *case) for case in cases))

            reasons.update(runner.run(together()))

        holds()
        runner.run(backend.aclose())
    print(reasons)
    assert set(reasons) <= {FinishReason.EOS, FinishReason.LENGTH}
    assert reasons[FinishReason.EOS] > 20 * BATCHES


def test_special_tokens_with_a_bad_word_are_no_text() -> None:
    tokens = ("<tool_call>", "</tool_call>", "<image>")
    assert "tool" not in text_without(("tool",), tokens, "bad_words")
    assert "(TEXT (<image>))*" in text_without(("tool",), tokens, "bad_words")
