"""Bytes on the wire, one file each: `tests/golden/triton/<dialect>/<case>`; files of all dialects are one level higher.

A difference is either a fault or a decision; whoever takes the decision edits the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.fold import fold
from schemas.errors import GatewayError, Incomplete
from schemas.ir import Delta, Events, Finished, FinishReason, Started, Token, TopToken, Usage
from tests.adapters.triton.cases import ANSWER, CLIENTS, DIALECTS, GOLDEN, ROUTES, SERVERS, call, decode

SCORED: Events = (
    Started("mymodel", 3),
    Delta(0, "Hello", (Token(5, "Hello", -0.5, top=(TopToken(5, "Hello", -0.5), TopToken(9, "Hi", -1.25))),)),
    Finished(0, "", (Token(2, "</s>", -0.25, special=True),), reason=FinishReason.EOS, generated=2),
    Usage(3, 2),
)
TWO: Events = (
    Started("mymodel", 3),
    Delta(1, "b", (Token(1, "b"),)),
    Finished(1, reason=FinishReason.LENGTH, generated=1),
    Finished(0, "a", (Token(2, "a"),), reason=FinishReason.STOP_STRING, generated=1, stop="x"),
    Usage(3, 2),
)
RETURN_FLAGS = [
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
]


def body(dialect: str, *flags: str, **members: Any) -> str:
    """A generate body with the given `return_…` flags, or in MindIE's dialect with details if there are any."""
    extra = {"parameters": {"details": bool(flags)}} if dialect == "mindie-triton" else dict.fromkeys(flags, True)
    return json.dumps({"text_input": "client input"} | members | extra)


def whole(dialect: str, given: str, events: Events = ANSWER, operation: str = "generate") -> bytes:
    return SERVERS[dialect].encode(decode(given, operation, dialect=dialect), fold(events)).body


def streamed(dialect: str, given: str, events: Events = ANSWER, failure: GatewayError | None = None) -> bytes:
    encoder = SERVERS[dialect].encoder(decode(given, "generate_stream", dialect=dialect))
    return encoder.feed(events) + (encoder.fail(failure) if failure else b"")


def infer(dialect: str, binary: bool) -> bytes:
    inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["client input"]}]
    outputs = [{"name": name} for name in ("text_output", "finish_reason", "num_output_tokens")]
    given = {"id": "42", "inputs": inputs, "outputs": outputs, "parameters": {"binary_data_output": binary}}
    return whole(dialect, json.dumps(given), operation="infer")


def described(dialect: str, operation: str, model: str = "mymodel", data: bytes = b"") -> bytes:
    return SERVERS[dialect].describe(ROUTES[operation], call(model), data).body


def refused(dialect: str, given: str | bytes, model: str = "mymodel") -> bytes:
    with pytest.raises(GatewayError) as error:
        decode(given, model=model, dialect=dialect)
    return SERVERS[dialect].error(error.value).body


def sent(dialect: str, operation: str) -> bytes:
    return CLIENTS[dialect].encode(decode(body(dialect, id="42"), operation, dialect=dialect)).body


CASES: dict[str, Callable[[str], bytes]] = {
    "generate.json": lambda dialect: whole(dialect, body(dialect, id="42")),
    "generate_without_id.json": lambda dialect: whole(dialect, body(dialect)),
    "generate_all.json": lambda dialect: whole(dialect, body(dialect, *RETURN_FLAGS, id="42"), SCORED),
    "stream.sse": lambda dialect: streamed(dialect, body(dialect, id="42")),
    "stream_all.sse": lambda dialect: streamed(dialect, body(dialect, *RETURN_FLAGS), SCORED),
    "stream_failed.sse": lambda dialect: streamed(
        dialect,
        body(dialect, *RETURN_FLAGS),
        ANSWER[:2],
        Incomplete("The backend's answer stopped before it was finished."),
    ),
    "infer.json": lambda dialect: infer(dialect, binary=False),
    "infer.bin": lambda dialect: infer(dialect, binary=True),
    "sent_generate.json": lambda dialect: sent(dialect, "generate"),
    "sent_stream.json": lambda dialect: sent(dialect, "generate_stream"),
    "error_malformed.json": lambda dialect: refused(dialect, b"{"),
    "error_missing.json": lambda dialect: refused(dialect, "{}"),
    "error_type.json": lambda dialect: refused(dialect, '{"text_input": 3}'),
    "error_range.json": lambda dialect: refused(dialect, '{"text_input": "x", "parameters": {"temperature": -1}}'),
    "error_model.json": lambda dialect: refused(dialect, "{}", model="nope"),
}
TRITON_ONLY: dict[str, Callable[[str], bytes]] = {
    "stream_two.sse": lambda dialect: streamed(dialect, body(dialect, *RETURN_FLAGS, n=2), TWO),
    "error_exactly_one.json": lambda dialect: refused(dialect, '{"text_input": "x", "n": 2}'),
    "error_duplicate.json": lambda dialect: refused(dialect, '{"text_input": "x", "text_input": "y"}'),
    "error_parameter.json": lambda dialect: refused(dialect, '{"text_input": "x", "parameters": {"y": {}}}'),
}
DESCRIBED: dict[str, Callable[[str], bytes]] = {
    "server.json": lambda dialect: described(dialect, "server"),
    "live.txt": lambda dialect: described(dialect, "live"),
    "model.json": lambda dialect: described(dialect, "model"),
    "model_own_names.json": lambda dialect: described(dialect, "model", "mock_llm"),
    "ready.txt": lambda dialect: described(dialect, "model_ready"),
    "not_ready.json": lambda dialect: described(dialect, "model_ready", "loading"),
    "config.json": lambda dialect: described(dialect, "config"),
    "stats.json": lambda dialect: described(dialect, "stats"),
    "all_stats.json": lambda dialect: described(dialect, "all_stats"),
    "index.json": lambda dialect: described(dialect, "index"),
    "index_ready.json": lambda dialect: described(dialect, "index", data=b'{"ready": true}'),
}
ALL = [(dialect, name, case) for dialect in DIALECTS for name, case in CASES.items()]
ALL += [("triton", name, case) for name, case in TRITON_ONLY.items()]


@pytest.mark.parametrize(("dialect", "name", "case"), ALL, ids=[f"{dialect}/{name}" for dialect, name, _ in ALL])
def test_golden(dialect: str, name: str, case: Callable[[str], bytes]) -> None:
    assert case(dialect) == (GOLDEN / dialect / name).read_bytes()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", DESCRIBED)
def test_described(dialect: str, name: str) -> None:
    assert DESCRIBED[name](dialect) == (GOLDEN / name).read_bytes()


def test_every_file_is_a_case() -> None:
    files = {path.relative_to(GOLDEN) for path in GOLDEN.rglob("*") if path.is_file()}
    assert files == {Path(dialect, name) for dialect, name, _ in ALL} | set(map(Path, DESCRIBED))
