from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.config import Experiment
from gateway.routing.assignment import assign, source_of, sources
from schemas.ir import ChatPrompt, Generate, Message, TextPart, TextPrompt
from tests.adapters.openai.scenes import chat as openai_chat

BEFORE = {"a": 80, "b": 10, "c": 10}
AFTER = {"a": 60, "b": 10, "c": 30}
UNITS = [f"unit {number}" for number in range(100_000)]


@pytest.mark.no_cover
@pytest.mark.slow
def test_shares_hold_and_a_change_moves_few_units() -> None:
    before = [assign("chat", BEFORE, unit) for unit in UNITS]
    after = [assign("chat", AFTER, unit) for unit in UNITS]
    for arms, weights in ((before, BEFORE), (after, AFTER)):
        for arm, count in Counter(arms).items():
            share = weights[arm] / 100
            assert abs(count / len(UNITS) - share) < 4 * (share * (1 - share) / len(UNITS)) ** 0.5
    moved = sum(old != new for old, new in zip(before, after, strict=True)) / len(UNITS)
    assert 0.19 < moved <= 0.22
    kept = sum(old == new == "b" for old, new in zip(before, after, strict=True)) / before.count("b")
    assert kept >= 0.8


@pytest.mark.slow
def test_endpoints_are_independent() -> None:
    half = {"a": 50, "b": 50}
    both = Counter((assign("one", half, unit), assign("two", half, unit)) for unit in UNITS[:20_000])
    assert all(abs(count / 20_000 - 0.25) < 0.015 for count in both.values())


@pytest.mark.slow
def test_four_processes_agree() -> None:
    code = (
        "from gateway.routing.assignment import assign; import hashlib\n"
        "arms = [assign('chat', {'a': 80, 'b': 10, 'c': 10}, f'unit {n}') for n in range(5000)]\n"
        "print(hashlib.sha256(''.join(arms).encode()).hexdigest())"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    assert len({process.communicate()[0] for process in started}) == 1
    assert all(process.returncode == 0 for process in started)


def test_arms_are_the_same_in_every_release() -> None:
    arms = "".join(assign("chat", BEFORE, f"unit {number}") for number in range(40))
    assert arms == "aaaaaaaacaaaacabaabaaaaaaabaacaaaaaaaaba"


@given(st.text(), st.lists(st.integers(0, 100), min_size=2, max_size=5).filter(any), st.integers(0, 4), st.data())
def test_raising_one_weight_moves_units_to_that_arm_only(
    unit: str, given: list[int], at: int, data: st.DataObject
) -> None:
    weights = {f"arm {number}": float(weight) for number, weight in enumerate(given)}
    raised = f"arm {at % len(given)}"
    more = weights | {raised: weights[raised] + data.draw(st.integers(1, 100))}
    old, new = assign("chat", weights, unit), assign("chat", more, unit)
    assert weights[old] > 0
    assert new in (old, raised)


def test_all_weights_zero_is_an_error() -> None:
    with pytest.raises(ValueError, match="positive"):
        assign("chat", {"a": 0.0}, "u")


def _chat(*turns: tuple[str, str], user: str | None = None) -> Generate:
    prompt = ChatPrompt(tuple(Message(role, content) for role, content in turns))
    return Generate(id="r1", model="chat", prompts=(prompt,), user=user)


ORDER = sources(("header:x-ab-unit", "user", "client_request_id", "conversation", "request"))


def test_the_first_configured_source_is_the_unit() -> None:
    request = _chat(("user", "Hi"), user="u1")
    assert source_of(request, {"x-ab-unit": "h"}, ORDER) == ("header:x-ab-unit", "h")
    assert source_of(request, {}, ORDER) == ("user", "u1")
    assert source_of(request, {}, sources(["client_request_id"])) == ("request", "r1")
    text = Generate(id="r2", model="chat", prompts=(TextPrompt("Hi"),))
    assert source_of(text, {}, ORDER) == ("request", "r2")


def test_the_turns_of_a_conversation_are_one_unit() -> None:
    first = source_of(_chat(("system", "Be kind."), ("user", "Hi")), {}, ORDER)
    later = _chat(("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("user", "And?"))
    assert first[0] == "conversation"
    assert source_of(later, {}, ORDER) == first
    assert source_of(_chat(("system", "Be kind."), ("user", "Ho")), {}, ORDER) != first
    parts = Generate(
        id="r", model="chat", prompts=(ChatPrompt((Message("system", "Be kind."), Message("user", (TextPart("Hi"),)))),)
    )
    assert source_of(parts, {}, ORDER) == first


def test_the_default_order_prefers_who_asks_to_what_is_asked() -> None:
    order, names = sources(Experiment().unit), ["user", "safety_identifier", "prompt_cache_key"]
    for place, name in enumerate(names):
        given = openai_chat(**{later: later for later in names[place:]})
        assert source_of(given, {}, order) == (name, name)
    # Databricks' clients send a new one with every request.
    asked = replace(openai_chat(), client_request_id="c")
    assert source_of(asked, {}, order)[0] == "conversation"
    assert source_of(asked, {}, sources(["client_request_id"]))[1] == "c"


def test_a_key_is_a_unit_only_as_a_digest() -> None:
    unit = source_of(_chat(("user", "Hi")), {"authorization": "Bearer secret"}, sources(["api_key"]))
    assert unit[0] == "api_key"
    assert "secret" not in unit[1]


def test_a_key_is_the_same_unit_in_either_header() -> None:
    request, order = _chat(("user", "Hi")), sources(["api_key"])
    bearer = source_of(request, {"authorization": "Bearer secret"}, order)
    assert source_of(request, {"x-api-key": "secret"}, order) == bearer
    assert source_of(request, {"x-api-key": "other"}, order) != bearer
    assert source_of(request, {}, order)[0] == "request"
