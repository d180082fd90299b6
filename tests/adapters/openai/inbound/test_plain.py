"""Plain chats: read in one step, they are what the full way reads, and nothing is accepted that it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Call
from adapters.openai.dialects import DIALECTS
from adapters.openai.server import OpenAIServer
from schemas.catalog import Catalog
from schemas.errors import GatewayError

SERVER = OpenAIServer(DIALECTS["openai"])
ROUTE = next(route for route in SERVER.routes if route.name == "chat")
PLAIN = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
CALL = Call("r1", Catalog({}, default="d"))
NUMBERS = st.none() | st.integers(-3, 3) | st.floats(-3, 3) | st.sampled_from((2**63, 2**70, 1e300, True, "1", [1]))
ROLES = st.sampled_from(("user", "system", "developer", "assistant", "tool", "function", "boss", 1))
TEXTS = st.text(max_size=5) | st.sampled_from(("\ud800", None, [{"type": "text", "text": "x"}]))
MESSAGES = st.fixed_dictionaries({"role": ROLES, "content": TEXTS}, optional={"name": st.text(max_size=3)})
OPTIONS = st.none() | st.dictionaries(
    st.sampled_from(("include_usage", "continuous_usage_stats", "x")), st.booleans() | st.none(), max_size=2
)
BODIES = st.fixed_dictionaries(
    {"model": st.sampled_from(("m", "tgi", "", None)), "messages": st.lists(MESSAGES, max_size=3)},
    optional={
        "stream": st.booleans() | st.none() | st.just(1),
        "stream_options": OPTIONS,
        "user": st.text(max_size=3) | st.none(),
        "store": st.booleans(),
        "n": st.integers(1, 2),
        **dict.fromkeys(
            ("max_tokens", "max_completion_tokens", "temperature", "top_p", "presence_penalty", "seed"), NUMBERS
        ),
    },
)


def by_both(body: bytes) -> tuple[Any, Any]:
    """What the plain way makes of a body, and the full way's request or refusal."""
    full = OpenAIServer(DIALECTS["openai"])
    full._plain_chats._template = None
    try:
        return SERVER._plain_chats.read("chat", body, CALL), full.decode(ROUTE, body, CALL)
    except GatewayError as error:
        return None, error


@given(body=BODIES)
def test_both_ways_read_the_same(body: dict[str, Any]) -> None:
    plain, full = by_both(json.dumps(body).encode())
    assert plain is None or plain == full
    if isinstance(full, GatewayError):
        assert SERVER._plain_chats.read("chat", json.dumps(body).encode(), CALL) is None


@pytest.mark.parametrize(
    "fields",
    [
        "",
        ',"stream":true,"stream_options":{"include_usage":true}',
        ',"temperature":0.5,"top_p":0,"seed":-1,"max_tokens":3,"max_completion_tokens":4,"user":"u"',
        ',"model":"other"',
    ],
)
def test_usual_chats_are_plain(fields: str) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"}]%b}'
    plain, full = by_both(body % fields.encode())
    assert plain is not None
    assert plain == full


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"unknown":1}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[]}',
        b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 70_000),
        b"[]",
        b"\xff",
    ],
)
def test_others_go_the_full_way(body: bytes) -> None:
    assert SERVER._plain_chats.read("chat", body, CALL) is None


def test_a_dialect_with_rules_of_its_own_has_no_plain_chats() -> None:
    mindie = OpenAIServer(DIALECTS["mindie-openai"])
    assert mindie._plain_chats.read("chat", PLAIN, CALL) is None
