"""Every kind of error in every dialect as literal bytes: `errors.txt` has kind, status and body."""

from __future__ import annotations

import pytest

from adapters.tgi.dialects import DIALECTS
from schemas import errors
from tests.adapters.tgi.scenes import NAMES, ROUTES, ask, call, golden, server


def _of_kind(kind: str) -> errors.GatewayError:
    if kind == "unsupported":
        return errors.UnsupportedFeature("Why.", feature="grammar")
    kinds = (found for found in _subclasses(errors.GatewayError) if not issubclass(found, errors.UnsupportedFeature))
    return next(found for found in kinds if found.kind == kind)("Why.")


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
def test_an_unsupported_feature_is_named_by_its_field(feature: str, field: str) -> None:
    body = server("tgi").error(errors.UnsupportedFeature("Why.", feature=feature)).body
    assert f"`{field}` is not supported by this model".encode() in body


def test_an_unsupported_feature_without_a_field_keeps_its_message() -> None:
    assert b"Input validation error: Why." in server("tgi").error(errors.UnsupportedFeature("Why.", feature="x")).body


def test_braces_in_a_message_are_text() -> None:
    assert b"{0} {x}" in server("tgi").error(errors.InvalidRequest("{0} {x}")).body


def test_headers() -> None:
    reply = server("tgi").error(errors.Overloaded("Why.", retry_after=0.3))
    assert reply.headers == (("retry-after", "1"),)
    reply = server("tgi").error(errors.MethodNotAllowed("Why.", allowed=("GET", "HEAD")))
    assert reply.headers == (("allow", "GET, HEAD"),)


class TestErrorsAsFrames:
    """Errors of streamed requests with status 200 as one event: TGI's own form, off unless configured."""

    FRAME = b'data: {"error":"Model is overloaded","error_type":"overloaded"}\n\n'

    def test_an_error_of_a_stream_has_a_status_by_default(self) -> None:
        request = ask("tgi", operation="generate_stream")
        assert server("tgi").error(errors.Overloaded("Why."), request).status == 429

    def test_an_error_of_a_stream_is_a_frame_if_configured(self) -> None:
        request = ask("tgi", operation="generate_stream")
        reply = server("tgi", stream_errors_as_frames=True).error(errors.Overloaded("Why."), request)
        assert (reply.status, reply.media_type, reply.body) == (200, "text/event-stream", self.FRAME)

    def test_an_error_of_a_non_streamed_request_has_a_status(self) -> None:
        assert server("tgi", stream_errors_as_frames=True).error(errors.Overloaded("Why."), ask("tgi")).status == 429

    @pytest.mark.parametrize(
        ("operation", "body"),
        [
            ("generate_stream", b'{"inputs":"a","parameters":{"temperature":0}}'),
            ("compat", b'{"inputs":"a","parameters":{"temperature":0},"stream":true}'),
        ],
    )
    def test_an_invalid_streamed_request_is_answered_with_a_frame(self, operation: str, body: bytes) -> None:
        codec = server("tgi", stream_errors_as_frames=True)
        with pytest.raises(errors.InvalidRequest) as raised:
            codec.decode(ROUTES[operation], body, call())
        reply = codec.error(raised.value)
        assert reply.status == 200
        assert reply.body.startswith(b'data: {"error":"Input validation error: `temperature` must be')

    @pytest.mark.parametrize("operation", ["generate", "compat"])
    def test_an_invalid_non_streamed_request_has_a_status(self, operation: str) -> None:
        codec = server("tgi", stream_errors_as_frames=True)
        with pytest.raises(errors.InvalidRequest) as raised:
            codec.decode(ROUTES[operation], b'{"inputs":"a","parameters":{"temperature":0}}', call())
        assert codec.error(raised.value).status == 422

    def test_a_body_that_is_no_request_has_a_status(self) -> None:
        """As in TGI, whose web framework refuses it before there is a stream."""
        codec = server("tgi", stream_errors_as_frames=True)
        with pytest.raises(errors.MalformedBody) as raised:
            codec.decode(ROUTES["generate_stream"], b"{", call())
        assert codec.error(raised.value).status == 422
