"""Embeddings from remotes: requests and answers of OpenAI's and Databricks' client codecs."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from adapters.base import Reply
from schemas.errors import BackendError, ContextLengthExceeded, GatewayError, UnsupportedFeature
from schemas.ir import Embed, Embeddings, Origin, TextPrompt, TokensPrompt, Usage
from tests.adapters.databricks import scenes as databricks
from tests.adapters.openai import scenes as openai

CLIENTS = {"openai": openai.client(), "databricks": databricks.client()}
TWO = b"""{"data": [{"index": 1, "embedding": [0.5, -1.0]}, {"index": 0, "embedding": [1, 2]}], "model": "bge",
  "usage": {"prompt_tokens": 7}}"""


def asked(*inputs: TextPrompt | TokensPrompt, **fields: Any) -> Embed:
    return Embed(id="r1", model="far", inputs=inputs or (TextPrompt("a"), TextPrompt("b")), **fields)


@pytest.mark.parametrize(
    ("request_", "body"),
    [
        (asked(TextPrompt("a")), {"input": "a"}),
        (asked(), {"input": ["a", "b"]}),
        (asked(TokensPrompt((1, 2))), {"input": [1, 2]}),
        (asked(TokensPrompt((1,)), TokensPrompt((2, 3))), {"input": [[1], [2, 3]]}),
        (asked(TextPrompt("a"), dimensions=5, user="u"), {"input": "a", "dimensions": 5, "user": "u"}),
    ],
)
@pytest.mark.parametrize("kind", CLIENTS)
def test_the_request_that_is_sent(kind: str, request_: Embed, body: dict[str, Any]) -> None:
    outbound = CLIENTS[kind].encode_embed(request_)
    named = {"model": "far"} if kind == "openai" else {}
    assert json.loads(outbound.body) == body | named
    assert outbound.path == ("/embeddings" if kind == "openai" else "/serving-endpoints/far/invocations")


def test_only_databricks_can_express_an_instruction() -> None:
    request = asked(TextPrompt("a"), instruction="query: ")
    assert json.loads(CLIENTS["databricks"].encode_embed(request).body)["instruction"] == "query: "
    with pytest.raises(UnsupportedFeature, match="instruction"):
        CLIENTS["openai"].encode_embed(request)


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_body_of_a_client_of_the_same_dialect_is_relayed(kind: str) -> None:
    body = b'{"model":"near","input":"a","encoding_format":"base64","x_new":{"b":1.50}}'
    request = asked(TextPrompt("a"), origin=Origin(kind, kind, "embeddings", body), encoding="base64")
    sent = CLIENTS[kind].encode_embed(request).body
    rest = b'"input":"a","encoding_format":"base64","x_new":{"b":1.50}}'
    assert sent == (b'{"model":"far",' + rest if kind == "openai" else b"{" + rest)
    answer = b'{"data":[{"index":0,"embedding":"AACAPw=="}],"x":1,"usage":{"prompt_tokens":3,"total_tokens":3}}'
    read = CLIENTS[kind].decode_embeddings(request, Reply(answer))
    assert (read.vectors, read.usage, read.relayed) == (((1.0,),), Usage(3, 0), answer)


@pytest.mark.parametrize("entry", ['"index":0,"embedding":[1.0]', '"embedding":"AACAPw=="'])
def test_an_answer_that_the_clients_sdk_cannot_read_is_not_relayed(entry: str) -> None:
    """Numbers where base64 was requested, or no index: the answer is encoded anew."""
    origin = Origin("openai", "openai", "embeddings", b'{"input":"a","encoding_format":"base64"}')
    request = asked(TextPrompt("a"), origin=origin, encoding="base64")
    read = CLIENTS["openai"].decode_embeddings(request, Reply(b'{"data":[{%b}]}' % entry.encode()))
    assert (read.vectors, read.relayed) == (((1.0,),), None)
    body = json.loads(openai.server().encode_embeddings(request, read).body)
    assert body["data"] == [{"object": "embedding", "index": 0, "embedding": "AACAPw=="}]


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_vectors_that_are_decoded(kind: str) -> None:
    read = CLIENTS[kind].decode_embeddings(asked(), Reply(TWO))
    assert read == Embeddings("bge", ((1.0, 2.0), (0.5, -1.0)), Usage(7, 0))


def test_fields_that_servers_omit() -> None:
    packed = base64.b64encode(struct.pack("<2f", 0.25, 3.0)).decode()
    body = json.dumps({"data": [{"embedding": packed}]}).encode()
    read = CLIENTS["openai"].decode_embeddings(asked(TextPrompt("a")), Reply(body))
    assert read == Embeddings("far", ((0.25, 3.0),), Usage(0, 0))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>", BackendError),
        (b"[]", BackendError),
        (b'{"data":[{"embedding":[1]}]}', BackendError),
        (b'{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}', BackendError),
        (b'{"data":[{"index":1,"embedding":[1]},{"index":2,"embedding":[1]}]}', BackendError),
        (b'{"data":[{"embedding":"?"},{"embedding":"AAA="}]}', BackendError),
        (b'{"data":[{"embedding":"AAA="},{"embedding":"AAA="}]}', BackendError),
        (b'{"usage":3}', BackendError),
        (b"{}", BackendError),
        (b'{"error":{"message":"maximum context length is 5","code":400}}', ContextLengthExceeded),
    ],
)
def test_malformed_answers_are_failures(body: bytes, kind: type[GatewayError]) -> None:
    with pytest.raises(kind):
        CLIENTS["openai"].decode_embeddings(asked(), Reply(body))
