"""The mirror law: each codec decodes what the other one of the dialect encodes, and gets the same request or answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.completion import Choice, Completion
from schemas.errors import BackendFailed
from schemas.ir import Events, Finished, FinishReason, Generate, Token
from tests.adapters.laws import batches, canonical, splits, streams, texts
from tests.adapters.tgi.scenes import IMAGES, NAMES, ROUTES, ask, call, client, reply, server

QUESTION = {"details": True, "do_sample": True}


def heard(request: Generate, answer: Completion, *, streamed: bool) -> Completion:
    """The answer as far as the dialect can express it."""
    assert request.origin is not None
    name = request.origin.dialect
    choices = answer.choices
    if name == "mindie":
        choices = tuple(_heard_choice(request, choice, streamed) for choice in choices)
    usage = answer.usage
    if name == "tgi-0.9":
        usage = msgspec.structs.replace(usage, prompt_tokens=0)
    return msgspec.structs.replace(answer, choices=choices, usage=usage)


def _heard_choice(request: Generate, choice: Choice, streamed: bool) -> Choice:
    tokens = tuple(_heard_token(token) for token in choice.tokens) if streamed else ()
    reason = FinishReason.EOS if choice.reason is FinishReason.STOP_STRING else choice.reason
    return msgspec.structs.replace(choice, reason=reason, tokens=tokens, seed=request.sampling.seed)


def _heard_token(token: Token) -> Token:
    """MindIE sends neither log-probabilities nor `special`, and special tokens without text."""
    return Token(token.id, "" if token.special else token.text)


def _unmarked(answer: Completion) -> Completion:
    """The answer with no token special: the decoder guesses that MindIE's last token without text is the end token."""
    choices = (
        msgspec.structs.replace(choice, tokens=tuple(msgspec.structs.replace(t, special=False) for t in choice.tokens))
        for choice in answer.choices
    )
    return msgspec.structs.replace(answer, choices=tuple(choices))


def with_a_last_token(events: Events) -> Events:
    """The events as read back: the last frame always has a token, which may be empty."""
    *before, finished, usage = events
    assert isinstance(finished, Finished)
    tokens = finished.tokens or (Token(0, "", special=True),)
    return (*before, msgspec.structs.replace(finished, tokens=tokens), usage)


@given(data=st.data())
@pytest.mark.parametrize("name", NAMES)
def test_streams(name: str, data: st.DataObject) -> None:
    events = data.draw(streams(with_logprobs=name != "mindie", end_token=True))
    request = ask(name, QUESTION, operation="generate_stream")
    encoder = server(name).encoder(request)
    written = b"".join(encoder.feed(batch) for batch in data.draw(batches(events)))
    reader = client(name).decoder(msgspec.structs.replace(request, model="model"))
    read = tuple(event for piece in data.draw(splits(written)) for event in reader.feed(piece))
    assert reader.close() == ()
    expected = heard(request, canonical(with_a_last_token(events)), streamed=True)
    answer = canonical(read)
    assert (_unmarked(answer) if name == "mindie" else answer) == expected


@pytest.mark.parametrize("name", NAMES)
@given(events=streams(with_logprobs=True, tops=2), message=texts)
def test_no_text_ends_a_line(name: str, events: Events, message: str) -> None:
    """httpx's `iter_lines` and others split at every line separator of Unicode."""
    encoder = server(name).encoder(ask(name, QUESTION, operation="generate_stream"))
    stream = encoder.feed(events) + encoder.fail(BackendFailed(message))
    for line in stream.decode().splitlines():
        assert not line or json.loads(line.removeprefix("data:"))


@given(events=streams(with_logprobs=True, tops=2, end_token=True))
def test_streams_with_top_tokens(events: Events) -> None:
    request = ask("tgi", {"top_n_tokens": 2, "details": True}, operation="generate_stream")
    reader = client("tgi").decoder(msgspec.structs.replace(request, model="model"))
    read = reader.feed(server("tgi").encoder(request).feed(events))
    assert canonical(read) == canonical(with_a_last_token(events))


@given(events=streams(end_token=True))
def test_cumulative_streams(events: Events) -> None:
    request = ask("mindie", QUESTION, operation="generate_stream")
    reader = client("mindie", full_text=True).decoder(msgspec.structs.replace(request, model="model"))
    read = reader.feed(server("mindie", full_text=True).encoder(request).feed(events))
    expected = heard(request, canonical(with_a_last_token(events)), streamed=True)
    assert _unmarked(canonical(read)) == expected


@given(data=st.data())
@pytest.mark.parametrize("operation", ["generate", "compat"])
@pytest.mark.parametrize("name", NAMES)
def test_whole_answers(name: str, operation: str, data: st.DataObject) -> None:
    answer = fold(data.draw(streams(with_logprobs=name != "mindie", end_token=True)))
    request = ask(name, QUESTION | {"return_full_text": False}, operation=operation)
    written = server(name).encode(request, answer)
    read = client(name).decode(
        msgspec.structs.replace(request, model="model"), reply(written.body, 200, *written.headers)
    )
    assert canonical(read) == heard(request, answer, streamed=False)


@given(data=st.data())
def test_best_of(data: st.DataObject) -> None:
    answer = fold(data.draw(streams(choices=2, with_logprobs=True, end_token=True)))
    if len(answer.choices) != 2:
        return
    request = ask("tgi", {"best_of": 2, "details": True, "do_sample": True})
    written = server("tgi").encode(request, answer)
    read = canonical(client("tgi").decode(request, reply(written.body, 200, *written.headers)))
    key = [(choice.text, choice.reason, choice.tokens) for choice in read.choices]
    want = [(choice.text, choice.reason, choice.tokens) for choice in answer.choices]
    assert key in (want, want[::-1])


floats = {
    "temperature": st.floats(0.01, 5),
    "repetition_penalty": st.floats(0.01, 5),
    "frequency_penalty": st.floats(-2, 2),
    "top_p": st.floats(0.01, 0.99),
    "typical_p": st.floats(0.01, 0.99),
}
schemas: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(st.text(max_size=3), st.just({}), max_size=2),
        "additionalProperties": st.booleans(),
    }
)
values: dict[str, st.SearchStrategy[Any]] = floats | {
    "adapter_id": st.sampled_from(["a/b", "x.1", "None"]),
    "decoder_input_details": st.booleans(),
    "details": st.booleans(),
    "do_sample": st.booleans(),
    "grammar": st.one_of(
        schemas.map(lambda schema: {"type": "json", "value": schema}),
        st.text(max_size=5).map(lambda text: {"type": "regex", "value": text}),
        schemas.map(lambda schema: {"type": "json_schema", "value": {"name": "n", "schema": schema}}),
    ),
    "max_new_tokens": st.integers(1, 2**31 - 1),
    "return_full_text": st.booleans(),
    "seed": st.integers(1, 2**64 - 1),
    "stop": st.lists(st.text(min_size=1, max_size=5), max_size=4),
    "top_k": st.integers(1, 2**31 - 1),
    "top_n_tokens": st.integers(0, 5),
    "truncate": st.integers(1, 2000),
    "watermark": st.booleans(),
    "max_retries": st.integers(0, 3),
}
nullable = {name: st.none() | strategy for name, strategy in values.items()}
inputs = st.text(min_size=1, max_size=20).filter(lambda text: "![](" not in text)
parts = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, inputs)
    | st.sampled_from(
        [{"type": "image_url", "image_url": ref} for ref in ("https://a/b", "/a.png", "data:image/png;base64,x")]
    ),
    min_size=1,
    max_size=4,
)


def asked(request: Generate) -> Generate:
    """A request without what the client codec sets itself: details always, the prompt never. A seed
    that was drawn is asked for there.
    """
    scored = request.n > 1 or request.top_logprobs > 0
    sampling = msgspec.structs.replace(request.sampling, seed_drawn=False)
    return msgspec.structs.replace(
        request, id="", origin=None, echo=False, stream_usage=False, logprobs=scored, sampling=sampling
    )


def again(name: str, request: Generate, catalog: Any = None) -> Generate:
    outbound = client(name).encode(request)
    route = next(route for route in ROUTES.values() if route.path == outbound.path)
    read = server(name).decode(route, outbound.body, call(catalog or IMAGES, "another-id"))
    assert isinstance(read, Generate)
    return read


@given(data=st.data())
@pytest.mark.parametrize("name", NAMES)
def test_requests(name: str, data: st.DataObject) -> None:
    parameters = data.draw(st.none() | st.fixed_dictionaries({}, optional=nullable))
    if parameters is not None and name == "tgi" and data.draw(st.booleans()):
        parameters = {key: value for key, value in parameters.items() if key != "seed"}
        parameters |= {"best_of": 2, "do_sample": True}
    what = data.draw(inputs | parts) if name == "mindie" else data.draw(inputs)
    operations = ["generate", "compat"]
    if not (parameters or {}).get("decoder_input_details") and "best_of" not in (parameters or {}):
        operations.append("generate_stream")
    fields = data.draw(st.fixed_dictionaries({}, optional={"options": st.just({"wait": True})}))
    request = ask(
        name,
        parameters,
        operation=data.draw(st.sampled_from(operations)),
        inputs=what,
        catalog=IMAGES,
        knobs={"max_images": None},
        **fields,
    )
    body = json.loads(client(name).encode(request).body)
    assert isinstance(body["parameters"], dict)
    if name != "mindie" or isinstance(what, str) or sum(part["type"] == "image_url" for part in what) <= 1:
        assert asked(again(name, request)) == asked(request)


def test_images() -> None:
    request = ask("tgi", inputs="![](https://a/b)See![](data:image/png;base64,x)Who?", catalog=IMAGES)
    assert asked(again("tgi", request)) == asked(request)
