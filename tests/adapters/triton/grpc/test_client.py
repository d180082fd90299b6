"""The client codec over gRPC: the mirror law, and that it says what the codec of HTTP says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.base import Reply
from adapters.fold import fold
from adapters.formats.length_prefixed import frame
from adapters.triton.dialects import DIALECTS
from adapters.triton.grpc.client import TritonRpcClient
from adapters.triton.grpc.messages import MESSAGES
from schemas.errors import BackendFailed, InvalidRequest
from schemas.ir import Events, Generate, Relayed, Stopping, TextPrompt
from schemas.origin import Origin
from tests.adapters.laws import batches, canonical, splits, streams, texts
from tests.adapters.triton.cases import ANSWER, decode
from tests.adapters.triton.grpc.test_server import CALL, CODEC, ROUTES
from tests.adapters.triton.test_laws import (
    SAYABLE,
    grammars,
    images,
    limits,
    same,
    triton_samplings,
    triton_stoppings,
    without_tokens,
)

CLIENT = TritonRpcClient(DIALECTS["triton"])
ASK = Generate(id="r1", model="mymodel", prompts=(TextPrompt("x"),))


def mirrored(request: Generate) -> Generate:
    """The request as the server codec of a remote decodes it."""
    operation = "infer_stream" if request.stream else "infer"
    return CODEC.decode(ROUTES[operation], CLIENT.encode(request).body, CALL)


def whole(reply: Reply) -> Reply:
    """The answer as the transport hands it over."""
    method = ("grpc-method", "/inference.GRPCInferenceService/ModelInfer")
    return msgspec.structs.replace(reply, headers=(*reply.headers, method))


@settings(max_examples=20)
@given(data=st.data(), events=streams(reasons=SAYABLE, model="mymodel", end_token=True))
def test_streams(data: st.DataObject, events: Events) -> None:
    request = mirrored(msgspec.structs.replace(ASK, stream=True))
    encoder = CODEC.encoder(request)
    written = b"".join(encoder.feed(batch) for batch in data.draw(batches(events)))
    reader = CLIENT.decoder(request)
    read: Events = ()
    for piece in data.draw(splits(written)):
        read += reader.feed(piece)
    assert canonical(read + reader.close()) == without_tokens(canonical(events))


@settings(max_examples=20)
@given(events=streams(reasons=SAYABLE, model="mymodel", with_logprobs=True), stream=st.booleans())
def test_answers_with_log_probabilities(events: Events, stream: bool) -> None:
    request = mirrored(msgspec.structs.replace(ASK, stream=stream, logprobs=True))
    reply = CODEC.encode(request, fold(events))
    read = CLIENT.decode(request, reply if stream else whole(reply))
    assert canonical(read) == canonical(events)


@settings(max_examples=20)
@given(events=streams(reasons=SAYABLE, model="mymodel", choices=3), stream=st.booleans())
def test_several_choices(events: Events, stream: bool) -> None:
    answer = without_tokens(canonical(events))
    request = mirrored(msgspec.structs.replace(ASK, stream=stream, n=len(answer.choices)))
    if stream:
        reader = CLIENT.decoder(request)
        read = reader.feed(CODEC.encoder(request).feed(events)) + reader.close()
    else:
        read = CLIENT.decode(request, whole(CODEC.encode(request, fold(events))))
    assert canonical(read) == answer


def test_a_stream_that_is_cut_anywhere_is_never_complete() -> None:
    request = mirrored(msgspec.structs.replace(ASK, stream=True))
    written = CODEC.encoder(request).feed(ANSWER)
    for end in range(len(written)):
        reader = CLIENT.decoder(request)
        reader.feed(written[:end])
        with pytest.raises(Exception, match="stopped before it was finished"):
            reader.close()


@settings(max_examples=20)
@given(
    st.builds(
        Generate,
        id=st.just("req-1"),
        model=st.just("mymodel"),
        client_request_id=texts.filter(bool),
        prompts=st.builds(TextPrompt, texts, images).map(lambda prompt: (prompt,)),
        sampling=triton_samplings,
        stopping=triton_stoppings,
        stream=st.booleans(),
        n=st.integers(1, 4),
        truncate_prompt_tokens=st.none() | limits,
        grammar=grammars,
        lora_adapter=st.none() | st.sampled_from(["alpaca", "lora/1"]),
    ),
    st.integers(-1, 20),
)
def test_requests(request: Generate, top: int) -> None:
    request = msgspec.structs.replace(request, logprobs=top >= 0, top_logprobs=max(0, top))
    assert same(mirrored(request), request)


def test_unknown_parameters_of_triton_clients_are_passed_on() -> None:
    asked = decode('{"text_input": "x", "parameters": {"a": true, "b": -3, "c": 0.5, "d": "e", "max_tokens": 5}}')
    message = MESSAGES["ModelInferRequest"].FromString(CLIENT.encode(asked).body)
    found = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in message.parameters.items()}
    assert found == found | {"a": True, "b": -3, "c": 0.5, "d": "e", "max_tokens": 5}
    assert CLIENT.ignored(asked) == ()
    with pytest.raises(InvalidRequest, match="parameter 'big' is no number of 64 bits"):
        CLIENT.encode(msgspec.structs.replace(asked, extra={"big": 1 << 64}))


def test_the_clients_own_stream_is_not_relayed_as_it_is_not_json() -> None:
    origin = Origin("triton", "triton", "generate_stream", b"{}")
    request = msgspec.structs.replace(mirrored(msgspec.structs.replace(ASK, stream=True)), origin=origin)
    read = CLIENT.decoder(request).feed(CODEC.encoder(request).feed(ANSWER))
    assert not any(isinstance(event, Relayed) for event in read)


def response(name: str = "text_output", datatype: str = "BYTES", data: bytes = b"\x01\0\0\0x", **fields: Any) -> bytes:
    part = MESSAGES["ModelStreamInferResponse"](**fields)
    part.infer_response.outputs.add(name=name, datatype=datatype, shape=[1])
    part.infer_response.raw_output_contents.append(data)
    return frame(part.SerializeToString())


@pytest.mark.parametrize(
    "body",
    [
        frame(b"\xff"),
        response(datatype="INT32"),
        response(data=b"\x02\0\0\0x"),
        response("finish_reason"),
        response("num_output_tokens", "UINT32", b"\x01"),
        response(error_message="CUDA is gone"),
        frame(MESSAGES["ModelStreamInferResponse"]().SerializeToString()),
    ],
)
def test_what_is_not_of_the_protocol_is_a_failure(body: bytes) -> None:
    request = Generate(id="r", model="m", prompts=(TextPrompt("x"),), stopping=Stopping(), stream=True)
    with pytest.raises(BackendFailed) as error:
        CLIENT.decoder(request).feed(body)
    assert "CUDA" not in error.value.message


def test_a_last_response_without_outputs_says_nothing() -> None:
    part = MESSAGES["ModelStreamInferResponse"]()
    part.infer_response.parameters["triton_final_response"].bool_param = True
    request = msgspec.structs.replace(ASK, stream=True)
    assert CLIENT.decoder(request).feed(frame(part.SerializeToString())) == ()
