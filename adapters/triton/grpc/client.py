"""The client codec over gRPC: the request that `TritonClient` makes as `ModelInferRequest`, and responses to events.

Triton refuses whole answers (`ModelInfer`) of decoupled models, which may answer in several responses, as those of
vLLM's backend do. They are asked for by `ModelStreamInfer`, whose one response is then the answer.
"""

from __future__ import annotations

from typing import Any

from adapters.base import Outbound, Reply
from adapters.formats.length_prefixed import MessageReader
from adapters.remote_failures import REFUSED, failed, failure_of, malformed, retry_after
from adapters.triton import tensors
from adapters.triton.client import TritonClient
from adapters.triton.dialects import Dialect
from adapters.triton.grpc.messages import MESSAGES, SERVICE, parse
from adapters.triton.grpc.write import FINAL
from adapters.triton.remote.decode_answer import AnswerReader
from schemas.errors import GatewayError, InvalidRequest, MalformedBody
from schemas.ir import Event, Events, Generate
from schemas.triton import RemoteResponse

_INFER = f"/{SERVICE}/ModelInfer"
_STREAM_INFER = f"/{SERVICE}/ModelStreamInfer"
_DECOUPLED = "decoupled"
"""In Triton's refusal: "ModelInfer RPC doesn't support models with decoupled transaction policy"."""
_MAX_INT64, _MAX_UINT64 = (1 << 63) - 1, (1 << 64) - 1


class TritonRpcClient(TritonClient):
    """The client codec over gRPC."""

    def encode(self, request: Generate) -> Outbound:
        """Encode a request.

        Raises:
            schemas.errors.UnsupportedFeature: the dialect cannot express it.
        """
        asked = self.asked(request)
        message = MESSAGES["ModelInferRequest"](model_name=request.model, id=asked.id)
        for name, value in asked.parameters.items():
            setattr(message.parameters[name], _choice(name, value), value)
        for name, value in asked.inputs.items():
            elements = value if isinstance(value, list) else [value]
            datatype = tensors.DATATYPES[name]
            message.inputs.add(name=name, datatype=datatype, shape=[len(elements)])
            message.raw_input_contents.append(tensors.pack(datatype, elements))
        return Outbound(
            path="" if request.stream else _INFER,
            body=message.SerializeToString(),
            headers=(),
            stream_path=_STREAM_INFER,
            stream_if=_DECOUPLED,
        )

    def decoder(self, request: Generate) -> MessageAnswerReader:
        """The decoder of the streamed answer to `request`."""
        return MessageAnswerReader(request, self._dialect)

    def decode(self, request: Generate, reply: Reply) -> Events:
        """The events of a whole answer to `request`, as one complete stream.

        Raises:
            schemas.errors.BackendError: the answer is an error or violates the protocol.
        """
        is_whole = ("grpc-method", _INFER) in reply.headers
        reader = MessageAnswerReader(request, self._dialect, is_whole=is_whole)
        events = reader.feed(reply.body)
        return events + reader.close()

    def error(self, reply: Reply) -> GatewayError:
        """The error that a reply with an error status stands for."""
        said = dict(reply.headers).get("grpc-message")
        return failure_of(reply.status, said or REFUSED, retry_after(reply.headers))


def is_ready(reply: Reply) -> bool:
    """Whether the answer to `ServerReady` says that all models can answer."""
    messages = MessageReader().feed(reply.body)
    return bool(messages) and bool(parse("ServerReadyResponse", messages[0].data).ready)


def listed(body: bytes) -> list[str]:
    """The models in the answer to `RepositoryIndex`.

    Raises:
        KeyError: it is not such an answer.
    """
    try:
        index = parse("RepositoryIndexResponse", MessageReader().feed(body)[0].data)
    except (MalformedBody, IndexError):
        raise KeyError from None
    return [model.name for model in index.models]


class MessageAnswerReader(AnswerReader):
    """The decoder of one answer over gRPC.

    Args:
        request: the request that is answered.
        dialect: that of the remote.
        is_whole: whether the message is that of `ModelInfer`.
    """

    def __init__(self, request: Generate, dialect: Dialect, *, is_whole: bool = False) -> None:
        super().__init__(request, dialect, MessageReader())
        self._is_whole = is_whole

    def _frame(self, data: bytes, out: list[Event]) -> None:
        try:
            if self._is_whole:
                response = parse("ModelInferResponse", data)
            else:
                part = parse("ModelStreamInferResponse", data)
                if part.error_message:
                    raise failed()
                response = part.infer_response
        except MalformedBody:
            raise malformed("a message is not of the protocol") from None
        # Without outputs it only says that it is the last one.
        if response.outputs or not response.parameters[FINAL].bool_param:
            out.extend(self.answered(_read(response)))


def _choice(name: str, value: object) -> str:
    """The field of `InferParameter` for a value."""
    match value:
        case bool():
            return "bool_param"
        case int() if -_MAX_INT64 <= value <= _MAX_INT64:
            return "int64_param"
        case int() if 0 < value <= _MAX_UINT64:
            return "uint64_param"
        case int():
            raise InvalidRequest(f"parameter '{name}' is no number of 64 bits", param=name)
        case float():
            return "double_param"
    return "string_param"


def _read(response: Any) -> RemoteResponse:
    """The outputs of a response that are known, each with the elements of its tensor."""
    raw = response.raw_output_contents
    if len(raw) != len(response.outputs):
        raise malformed("its outputs are not in raw_output_contents")
    values: dict[str, Any] = {"model_name": response.model_name or None}
    for output, data in zip(response.outputs, raw, strict=True):
        if output.name not in _OUTPUTS:
            continue
        datatype = tensors.DATATYPES[output.name]
        if output.datatype != datatype:
            raise malformed(f"{output.name} is of another type")
        try:
            values[output.name] = tensors.unpack(datatype, data)
        except ValueError:
            raise malformed(f"{output.name} cannot be read") from None
    counted = values.pop("num_input_tokens", None)
    return RemoteResponse(**values, num_input_tokens=counted[0] if counted else None)


_OUTPUTS = frozenset(("text_output", "finish_reason", "logprobs", "num_input_tokens", "num_output_tokens"))
"""The fields of `RemoteResponse` that are tensors."""
