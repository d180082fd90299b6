"""The mirror law: each codec decodes what the other one encodes, and gets the same request or answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fold import fold
from schemas.completion import Completion
from schemas.ir import Events, FinishReason, Generate, Grammar, ImagePart, Sampling, Stopping, TextPrompt
from tests.adapters.laws import batches, canonical, effective, splits, streams, texts
from tests.adapters.triton.cases import CLIENTS, DIALECTS, ROUTES, SERVERS, call

SAYABLE = (FinishReason.EOS, FinishReason.LENGTH)


def mirrored(request: Generate, dialect: str) -> Generate:
    """The request as the server codec of a remote decodes it."""
    sent = CLIENTS[dialect].encode(request)
    model, operation = sent.path.removeprefix("/v2/models/").split("/")
    return SERVERS[dialect].decode(ROUTES[operation], sent.body, call(model))


def asked(dialect: str, **fields: Any) -> Generate:
    """A request as the remote decodes it, with every output that the client codec requests."""
    return mirrored(Generate(**({"id": "r1", "model": "mymodel", "prompts": (TextPrompt("x"),)} | fields)), dialect)


def expressible(answer: Completion, dialect: str) -> Completion:
    """The answer as far as the dialect can express it: MindIE does not count prompt tokens."""
    prompt_tokens = 0 if dialect == "mindie-triton" else answer.usage.prompt_tokens
    return msgspec.structs.replace(answer, usage=msgspec.structs.replace(answer.usage, prompt_tokens=prompt_tokens))


def without_tokens(answer: Completion) -> Completion:
    choices = tuple(msgspec.structs.replace(choice, tokens=()) for choice in answer.choices)
    return msgspec.structs.replace(answer, choices=choices)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data(), events=streams(reasons=SAYABLE, model="mymodel", end_token=True))
def test_streams(dialect: str, data: st.DataObject, events: Events) -> None:
    request = asked(dialect, stream=True)
    encoder = SERVERS[dialect].encoder(request)
    written = b"".join(encoder.feed(batch) for batch in data.draw(batches(events)))
    reader = CLIENTS[dialect].decoder(request)
    read: Events = ()
    for piece in data.draw(splits(written)):
        read += reader.feed(piece)
    assert canonical(read + reader.close()) == without_tokens(expressible(canonical(events), dialect))


@pytest.mark.parametrize("dialect", DIALECTS)
@given(events=streams(reasons=SAYABLE, model="mymodel", with_tokens=False))
def test_non_streamed_answers(dialect: str, events: Events) -> None:
    request = asked(dialect)
    reply = SERVERS[dialect].encode(request, fold(events))
    assert canonical(CLIENTS[dialect].decode(request, reply)) == expressible(canonical(events), dialect)


@given(data=st.data(), events=streams(reasons=SAYABLE, model="mymodel", choices=3))
def test_several_choices(data: st.DataObject, events: Events) -> None:
    answer = without_tokens(canonical(events))
    request = asked("triton", stream=True, n=len(answer.choices))
    encoder, reader = SERVERS["triton"].encoder(request), CLIENTS["triton"].decoder(request)
    read = reader.feed(b"".join(encoder.feed(batch) for batch in data.draw(batches(events))))
    assert canonical(read + reader.close()) == answer


@given(events=streams(reasons=SAYABLE, model="mymodel", with_logprobs=True), stream=st.booleans())
def test_tokens_are_sent_with_log_probabilities(events: Events, stream: bool) -> None:
    request = asked("triton", stream=stream, logprobs=True)
    if stream:
        reader = CLIENTS["triton"].decoder(request)
        read = reader.feed(SERVERS["triton"].encoder(request).feed(events)) + reader.close()
    else:
        reply = SERVERS["triton"].encode(request, fold(events))
        read = CLIENTS["triton"].decode(request, reply)
    assert canonical(read) == canonical(events)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(events=streams(reasons=SAYABLE, model="mymodel"), data=st.data())
def test_a_stream_that_is_cut_is_never_complete(dialect: str, events: Events, data: st.DataObject) -> None:
    request = asked(dialect, stream=True)
    written = SERVERS[dialect].encoder(request).feed(events)
    reader = CLIENTS[dialect].decoder(request)
    read = reader.feed(written[: data.draw(st.integers(0, len(written) - 1))])
    with pytest.raises(Exception, match=r"stopped before it was finished"):
        read += reader.close()


positive = st.floats(0.01, 2)
triton_samplings = st.builds(
    Sampling,
    temperature=st.just(0.0) | positive,
    top_k=st.none() | st.integers(1, 100),
    top_p=st.none() | st.floats(0.01, 0.99),
    min_p=st.none() | st.floats(0.01, 1),
    repetition_penalty=st.none() | positive,
    presence_penalty=st.none() | st.floats(-2, 2).filter(bool),
    frequency_penalty=st.none() | st.floats(-2, 2).filter(bool),
    logit_bias=st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=3).map(lambda d: tuple(d.items())),
    seed=st.none() | st.integers(0, 2**64 - 1),
).map(lambda sampling: msgspec.structs.replace(sampling, do_sample=sampling.temperature != 0))
mindie_samplings = st.builds(
    Sampling,
    do_sample=st.just(True),
    temperature=st.none() | positive,
    top_k=st.none() | st.integers(1, 100),
    top_p=st.none() | st.floats(0.01, 0.99),
    repetition_penalty=st.none() | positive,
    seed=st.none() | st.integers(0, 2**64 - 1),
) | st.just(Sampling(do_sample=False))
limits = st.integers(1, 1000)
triton_stoppings = st.builds(
    Stopping,
    max_new_tokens=limits,
    min_new_tokens=st.integers(0, 10),
    stop=st.lists(texts.filter(bool), max_size=3).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 1000), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    include_stop=st.booleans(),
).map(effective)
grammars = st.none() | st.sampled_from(
    [Grammar("json_object"), Grammar("regex", "[0-9]+"), Grammar("json_schema", {"type": "object"})]
)
images = st.lists(st.sampled_from(["aGk=", "/9j/4AAQ"]), max_size=2).map(
    lambda refs: tuple(ImagePart(ref, "data") for ref in refs)
)


def same(seen: Generate, request: Generate) -> bool:
    """Equality but for what the client codec adds: the requested outputs and the origin of the request."""
    return msgspec.structs.replace(seen, outputs=(), hints={}, origin=None, stream_usage=False) == request


@given(
    st.builds(
        Generate,
        id=st.just("req-1"),
        model=st.just("mymodel"),
        client_request_id=texts.filter(bool),
        prompts=st.builds(TextPrompt, texts, images).map(lambda prompt: (prompt,)),
        sampling=triton_samplings,
        stopping=triton_stoppings,
        stream=st.just(True),
        n=st.integers(1, 4),
        truncate_prompt_tokens=st.none() | limits,
        grammar=grammars,
        lora_adapter=st.none() | st.sampled_from(["alpaca", "lora/1"]),
    ),
    st.integers(-1, 20),
)
def test_triton_requests(request: Generate, top: int) -> None:
    request = msgspec.structs.replace(request, logprobs=top >= 0, top_logprobs=max(0, top))
    assert same(mirrored(request, "triton"), request)


@given(
    st.builds(
        Generate,
        id=st.just("req-1"),
        model=st.just("mymodel"),
        client_request_id=st.from_regex(r"[A-Za-z0-9_-]{1,256}", fullmatch=True),
        prompts=st.builds(TextPrompt, texts.filter(bool), images).map(lambda prompt: (prompt,)),
        sampling=mindie_samplings,
        stopping=st.builds(Stopping, max_new_tokens=limits),
        stream=st.booleans(),
    )
)
def test_mindie_requests(request: Generate) -> None:
    assert same(mirrored(request, "mindie-triton"), request)
