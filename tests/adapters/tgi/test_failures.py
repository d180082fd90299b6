"""Every kind of error in every dialect, as literal bytes: `errors.txt` holds kind, status, body."""

from __future__ import annotations

import pytest

from adapters.tgi.dialects import DIALECTS
from schemas import errors
from tests.adapters.tgi.scenes import NAMES, ROUTES, ask, call, golden, server


def _of_kind(kind: str) -> errors.GatewayError:
    if kind == "unsupported":
        return errors.UnsupportedFeature("Why.", feature="grammar")
    found: type[errors.GatewayError] = next(cls for cls in _subclasses(errors.GatewayError) if cls.kind == kind)
    return found("Why.")


def _subclasses(base: type[errors.GatewayError]) -> list[type[errors.GatewayError]]:
    return [found for sub in base.__subclasses__() for found in (sub, *_subclasses(sub))]


@pytest.mark.parametrize("name", NAMES)
def test_every_kind(name: str) -> None:
    lines = golden(name, "errors.txt").decode().splitlines()
    assert [line.split(" ")[0] for line in lines] == list(errors.KINDS) == list(DIALECTS[name].wording.failures)
    for line in lines:
        kind, status, body = (line + " ").split(" ", 2)
        reply = server(name).error(_of_kind(kind))
        assert (reply.status, reply.body.decode()) == (int(status), body.rstrip(" ")), kind
        assert reply.media_type == "application/json"


@pytest.mark.parametrize(
    ("feature", "field"),
    [
        ("chat", "inputs"),
        ("images", "inputs"),
        ("logprobs", "details"),
        ("top_logprobs", "top_n_tokens"),
        ("prompt_logprobs", "decoder_input_details"),
        ("watermark", "watermark"),
        ("lora_adapters", "adapter_id"),
    ],
)
def test_a_missing_feature_is_named_as_the_client_named_it(feature: str, field: str) -> None:
    body = server("tgi").error(errors.UnsupportedFeature("Why.", feature=feature)).body
    assert f"`{field}` is not supported by this model".encode() in body


def test_a_feature_without_a_field_keeps_its_words() -> None:
    assert b"Input validation error: Why." in server("tgi").error(errors.UnsupportedFeature("Why.", feature="x")).body


def test_braces_in_a_message_are_text() -> None:
    assert b"{0} {x}" in server("tgi").error(errors.InvalidRequest("{0} {x}")).body


def test_headers() -> None:
    reply = server("tgi").error(errors.Overloaded("Why.", retry_after=0.3))
    assert reply.headers == (("retry-after", "1"),)
    reply = server("tgi").error(errors.MethodNotAllowed("Why.", allowed=("GET", "HEAD")))
    assert reply.headers == (("allow", "GET, HEAD"),)


class TestErrorsAsFrames:
    """TGI's own way with streams, which is off unless configured: status 200 and one event."""

    FRAME = b'data: {"error":"Model is overloaded","error_type":"overloaded"}\n\n'

    def test_off(self) -> None:
        request = ask("tgi", operation="generate_stream")
        assert server("tgi").error(errors.Overloaded("Why."), request).status == 429

    def test_on(self) -> None:
        request = ask("tgi", operation="generate_stream")
        reply = server("tgi", stream_errors_as_frames=True).error(errors.Overloaded("Why."), request)
        assert (reply.status, reply.media_type, reply.body) == (200, "text/event-stream", self.FRAME)

    def test_whole_answers_have_a_status(self) -> None:
        assert server("tgi", stream_errors_as_frames=True).error(errors.Overloaded("Why."), ask("tgi")).status == 429

    @pytest.mark.parametrize(
        ("operation", "body"),
        [
            ("generate_stream", b'{"inputs":"a","parameters":{"temperature":0}}'),
            ("compat", b'{"inputs":"a","parameters":{"temperature":0},"stream":true}'),
        ],
    )
    def test_an_invalid_request_too(self, operation: str, body: bytes) -> None:
        face = server("tgi", stream_errors_as_frames=True)
        with pytest.raises(errors.InvalidRequest) as raised:
            face.decode(ROUTES[operation], body, call())
        reply = face.error(raised.value)
        assert reply.status == 200
        assert reply.body.startswith(b'data: {"error":"Input validation error: `temperature` must be')

    @pytest.mark.parametrize("operation", ["generate", "compat"])
    def test_but_not_of_a_whole_answer(self, operation: str) -> None:
        face = server("tgi", stream_errors_as_frames=True)
        with pytest.raises(errors.InvalidRequest) as raised:
            face.decode(ROUTES[operation], b'{"inputs":"a","parameters":{"temperature":0}}', call())
        assert face.error(raised.value).status == 422

    def test_a_body_that_is_no_request_has_a_status(self) -> None:
        """As upstream, where the framework refuses it before there is a stream."""
        face = server("tgi", stream_errors_as_frames=True)
        with pytest.raises(errors.MalformedBody) as raised:
            face.decode(ROUTES["generate_stream"], b"{", call())
        assert face.error(raised.value).status == 422
