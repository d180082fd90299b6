"""Calls of a workspace's endpoints. Their answers are decoded like OpenAI's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.fold import fold
from schemas.errors import (
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    UnsupportedFeature,
)
from schemas.ir import (
    ChatPrompt,
    Finished,
    FinishReason,
    Generate,
    Grammar,
    Message,
    Sampling,
    Started,
    Stopping,
    TextPrompt,
    Tool,
    Usage,
)
from tests.adapters.databricks.scenes import GOLDEN, ROUTES, call, client, completion, server
from tests.adapters.openai.scenes import ZOE, events_of, reply

TALK = ChatPrompt((Message("user", "Hello"),))


def asked(prompt: Any = TALK, **fields: Any) -> Generate:
    fields = {"sampling": Sampling(do_sample=True), "model": "chat"} | fields
    return Generate(id="r1", prompts=(prompt,), raw_prompt=not isinstance(prompt, ChatPrompt), **fields)


def body(request: Generate) -> dict[str, Any]:
    return json.loads(client().encode(request).body)


def test_the_path_names_the_endpoint() -> None:
    outbound = client().encode(asked(model="a b/c?d"))
    assert (outbound.method, outbound.path) == ("POST", "/serving-endpoints/a%20b%2Fc%3Fd/invocations")
    assert json.loads(outbound.body) == {"messages": [{"role": "user", "content": "Hello"}]}


def test_a_raw_prompt_sets_use_raw_prompt() -> None:
    request = asked(TextPrompt("Once"), stopping=Stopping(max_new_tokens=5, stop=("a",)), stream=True)
    assert body(request) == {
        "use_raw_prompt": True,
        "prompt": "Once",
        "max_tokens": 5,
        "stop": ["a"],
        "stream": True,
    }


def test_a_stream_is_not_asked_for_the_usage_of_every_chunk() -> None:
    """Strict endpoints answer `stream_options` with 400."""
    assert body(asked(stream=True)) == {"messages": [{"role": "user", "content": "Hello"}], "stream": True}


@pytest.mark.parametrize(
    ("fields", "feature"),
    [
        ({"sampling": Sampling(do_sample=True, seed=1)}, "seed"),
        ({"sampling": Sampling(do_sample=True, min_p=0.5)}, "min_p"),
        ({"sampling": Sampling(do_sample=True, presence_penalty=1.0)}, "presence_penalty"),
        ({"stopping": Stopping(stop_token_ids=(1,))}, "stop_token_ids"),
        ({"grammar": Grammar("regex", "a")}, "grammar"),
        ({"lora_adapter": "a"}, "lora_adapters"),
    ],
)
def test_requests_that_the_page_cannot_express_are_refused(fields: dict[str, Any], feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        client().encode(asked(**fields))
    assert caught.value.feature == feature


def test_a_drawn_seed_is_not_sent() -> None:
    assert "seed" not in body(asked(sampling=Sampling(do_sample=True, seed=1, seed_drawn=True)))


def test_a_relayed_body_changes_in_its_model_only() -> None:
    fields = b'"messages":[{"role": "user", "content": "Hello"}],"unheard_of":{"a": 1.50}'
    request = server().decode(ROUTES["chat"], b'{"model":"chat",%b}' % fields, call())
    assert isinstance(request, Generate)
    assert client().encode(request).body == b"{%b}" % fields


def test_a_relayed_suffix_is_appended_once() -> None:
    assert body(completion(suffix=" end", echo=True)) == {"prompt": "Once"}


@pytest.mark.parametrize("file", ["chat.json", "chat.sse", "completion.json", "completion.sse"])
def test_answers_of_our_own_server_are_decoded(file: str) -> None:
    data = (GOLDEN / file).read_bytes()
    request = asked(TALK if file.startswith("chat") else TextPrompt("Once"), stream=file.endswith("sse"))
    events = events_of(client(), request, data) if request.stream else client().decode(request, reply(data))
    answer = fold(events)
    assert answer.choices[0].text == fold(ZOE).choices[0].text
    assert (answer.model, answer.usage) == ("llama-3", Usage(7, 3))


def test_a_recorded_answer_is_decoded() -> None:
    sent = {
        "id": "chatcmpl_1",
        "object": "chat.completions",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "text", "text": "Hi"},
        ]}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }  # fmt: skip
    assert client().decode(asked(), reply(sent)) == (
        Started("m", 3),
        Finished(text="Hi", reasoning="Hm.", reason=FinishReason.EOS),
        Usage(3, 2),
    )


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "INVALID_PARAMETER_VALUE", InvalidRequest),
        (400, "BAD_REQUEST", InvalidRequest),
        (404, "RESOURCE_DOES_NOT_EXIST", ModelNotFound),
        (404, "ENDPOINT_NOT_FOUND", ModelNotFound),
        (429, "REQUEST_LIMIT_EXCEEDED", Overloaded),
        (500, "INTERNAL_ERROR", BackendFailed),
        (503, "TEMPORARILY_UNAVAILABLE", BackendUnavailable),
        (504, "DEADLINE_EXCEEDED", BackendTimeout),
        (401, "UNAUTHENTICATED", BackendFailed),
        (403, "PERMISSION_DENIED", BackendFailed),
    ],
)
def test_errors_are_the_same_in_a_stream(status: int, code: str, kind: type[GatewayError]) -> None:
    sent = {"error_code": code, "message": "It is so."}
    assert type(client().error(reply(sent, status))) is kind
    with pytest.raises(GatewayError) as caught:
        client().decoder(asked(stream=True)).feed(b"data: %b\n\n" % json.dumps(sent).encode())
    assert type(caught.value) is kind


def test_a_prompt_that_exceeds_the_context() -> None:
    sent = {"error_code": "BAD_REQUEST", "message": "This model's maximum context length is 8 tokens."}
    assert isinstance(client().error(reply(sent, 400)), ContextLengthExceeded)


def test_a_function_without_a_description_is_described_by_its_name() -> None:
    tools = (Tool("f"), Tool("g", "Does it."))
    sent = [tool["function"] for tool in body(asked(tools=tools))["tools"]]
    assert sent == [{"name": "f", "description": "f"}, {"name": "g", "description": "Does it."}]
