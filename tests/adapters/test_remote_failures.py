"""Errors of remotes with any body: a proxy in between may send anything."""

from __future__ import annotations

import pytest

from adapters.anthropic import ADAPTER as ANTHROPIC
from adapters.base import Adapter, Reply
from adapters.databricks import ADAPTER as DATABRICKS
from adapters.openai import ADAPTER as OPENAI
from adapters.tgi import ADAPTER as TGI
from adapters.triton import ADAPTER as TRITON
from schemas.errors import BackendUnavailable, InvalidRequest

BODIES = {
    "nothing": b"",
    "a page": b"<html>\xe4</html>",
    "another JSON": b'{"detail": [1]}',
    "no JSON object": b"[]",
    "not UTF-8": b'{"error": {"type": "\xff", "message": "\xff"}, "message": "\xff"}',
    "no end of brackets": b"[" * 100_000,
    "no end of members": b'{"error":' * 100_000,
}
ADAPTERS = {adapter.name: adapter for adapter in (ANTHROPIC, DATABRICKS, OPENAI, TGI, TRITON)}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_the_status_counts_where_the_body_cannot_be_decoded(adapter: Adapter, body: bytes) -> None:
    for dialect in adapter.dialects.values():
        client = adapter.client(dialect)
        assert isinstance(client.error(Reply(body, 503)), BackendUnavailable)
        refused = client.error(Reply(body, 400))
        assert isinstance(refused, InvalidRequest)
        assert refused.message == "The backend refused the request."
        assert client.error(Reply(body, 404)).message == "The backend has no such model, or no such path."


@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms"])
@pytest.mark.parametrize("value", ["9" * 400, "9" * 5000, "-1", "1e3", "soon", "\u0663"])
@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_an_invalid_retry_delay_is_ignored(adapter: Adapter, name: str, value: str) -> None:
    for dialect in adapter.dialects.values():
        failure = adapter.client(dialect).error(Reply(b"", 429, headers=((name, value),)))
        assert failure.retry_after is None
