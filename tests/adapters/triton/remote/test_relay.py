"""Forwarding of a remote's answers to clients of its dialect, without outputs that they did not request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.triton.dialects import DIALECTS
from adapters.triton.remote.relay import passes_back, relayed
from schemas.ir import Generate, Origin, Output, TextPrompt

TRITON, MINDIE = DIALECTS["triton"], DIALECTS["mindie-triton"]
ORIGIN = Origin("triton", "triton", "generate")


def request(**fields: Any) -> Generate:
    return Generate(**({"id": "r", "model": "m", "prompts": (TextPrompt("hi"),), "origin": ORIGIN} | fields))


def test_the_answer_to_a_request_of_the_same_dialect_passes_back() -> None:
    assert passes_back(TRITON, request())
    assert passes_back(TRITON, request(stream=True, origin=Origin("triton", "triton", "generate_stream")))


@pytest.mark.parametrize(
    "fields",
    [
        {"origin": None},
        {"origin": Origin("openai", "triton", "generate")},
        {"origin": Origin("triton", "mindie-triton", "generate")},
        {"origin": Origin("triton", "triton", "infer")},
        {"echo": True},
        {"stream": True},
        {"outputs": (Output("text_output", "TEXT"),)},
    ],
    ids=["no origin", "protocol", "dialect", "infer", "repeated prompt", "another form", "renamed output"],
)
def test_other_answers_are_encoded_anew(fields: dict[str, Any]) -> None:
    assert not passes_back(TRITON, request(**fields))


ANSWER = {
    "id": "r",
    "text_output": "a",
    "finish_reason": "stop",
    "num_input_tokens": 3,
    "num_output_tokens": 1,
    "new": 1,
}


def forwarded(**fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(relayed(TRITON, request(**fields), json.dumps(ANSWER).encode()).data)
    return found


def test_outputs_that_only_the_gateway_requested_are_removed_and_unknown_fields_stay() -> None:
    assert forwarded() == {"text_output": "a", "new": 1}


def test_requested_outputs_and_the_id_of_the_client_stay() -> None:
    outputs = (Output("text_output", "text_output"), Output("finish_reason", "finish_reason"))
    assert forwarded(outputs=outputs, client_request_id="r") == {
        "id": "r",
        "text_output": "a",
        "finish_reason": "stop",
        "new": 1,
    }


def test_an_answer_with_nothing_to_remove_keeps_its_bytes() -> None:
    data = b'{ "text_output" : "a" }'
    assert relayed(TRITON, request(), data).data == data


def test_mindies_details_are_removed_unless_requested_and_its_id_stays() -> None:
    data = b'{"id":"1","text_output":"a","details":{"finish_reason":"length"}}'
    assert json.loads(relayed(MINDIE, request(), data).data) == {"id": "1", "text_output": "a"}
    outputs = (Output("text_output", "text_output"), Output("details", "details"))
    assert relayed(MINDIE, request(outputs=outputs), data).data == data
