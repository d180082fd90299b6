"""Plain chats of Databricks' clients: read in one step, they are what the full way reads or refuses."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from adapters.base import Call
from adapters.databricks.dialects import DIALECTS
from adapters.databricks.server import DatabricksServer
from schemas.catalog import Catalog, ModelCard
from schemas.errors import GatewayError

SERVER, FULL = DatabricksServer(DIALECTS["databricks"]), DatabricksServer(DIALECTS["databricks"])
FULL._plain_chats._template = None
ROUTES = {route.name: route for route in SERVER.routes}
PATHS = {"invocations": {"name": "m"}, "served_invocations": {"name": "m", "served": "s"}, "chat": {}}
CARD = ModelCard(name="m", created=0)
CARDS = st.sampled_from((CARD, replace(CARD, task="completions", declared_task=True)))
TURNS = st.lists(st.sampled_from(("user", "assistant", "system", "developer", "tool")), max_size=4)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(("m", "other", "", None, 1)),
        "stream": st.booleans(),
        "stream_options": st.just({"include_usage": True}),
        "max_tokens": st.integers(-1, 3),
        "temperature": st.sampled_from((0, 0.5, 3)),
        "prompt": st.just("x"),
        "client_request_id": st.just("r"),
        "usage_context": st.just({"a": 1}),
    },
)


def outcome(server: DatabricksServer, name: str, body: bytes, card: ModelCard) -> Any:
    """The request that a server reads, or its refusal."""
    try:
        return server.decode(ROUTES[name], body, Call("r1", Catalog({"m": card}), PATHS[name]))
    except GatewayError as error:
        return type(error), error.message, getattr(error, "param", None)


@given(fields=BODIES, roles=TURNS, name=st.sampled_from(sorted(PATHS)), card=CARDS)
def test_both_ways_read_and_refuse_the_same(fields: dict[str, Any], roles: list[str], name: str, card: Any) -> None:
    messages = [{"role": role, "content": role[:1]} for role in roles]
    body = json.dumps(fields | {"messages": messages}).encode()
    assert outcome(SERVER, name, body, card) == outcome(FULL, name, body, card)


def test_a_chat_whose_path_names_the_endpoint_is_plain() -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":5}'
    read = SERVER._plain_chats.read("invocations", body, Call("r1", Catalog({}), {"name": "m"}), "m")
    assert read is not None
    assert read == FULL.decode(ROUTES["invocations"], body, Call("r1", Catalog({}), {"name": "m"}))
