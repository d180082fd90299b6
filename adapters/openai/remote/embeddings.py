"""Embeddings from remotes of this protocol: the request encoded, and the answer decoded.

The body of a client that speaks the remote's own dialect is relayed, and so is the remote's answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Reply
from adapters.openai.dialects import Dialect
from adapters.openai.remote.encode_request import same_dialect
from adapters.openai.remote.failures import event_failure
from adapters.openai.vectors import decode_vector
from adapters.outbound import inexpressible
from adapters.remote_failures import malformed, read_json
from schemas.ir import Embed, Embeddings, TextPrompt, Usage
from schemas.openai.remote import RemoteAnswer, RemoteEmbedding, RemoteEmbeddings


def write_embed(dialect: Dialect, request: Embed, named: dict[str, Any], *, instruction: bool = False) -> bytes:
    """The JSON of a request.

    Args:
        dialect: the remote's dialect.
        request: the request.
        named: the field that names the model, if the body does.
        instruction: whether the protocol has the field `instruction`.

    Raises:
        schemas.errors.UnsupportedFeature: the request has an instruction and the protocol has none.
    """
    if same_dialect(dialect, request):
        assert request.origin is not None
        fields: dict[str, Any] = dict(msgspec.json.decode(request.origin.body, type=dict[str, msgspec.Raw]))
        # The client's name of the model is the endpoint's, not the remote's.
        fields.pop("model", None)
        return msgspec.json.encode(named | fields)
    if request.instruction and not instruction:
        raise inexpressible("instruction")
    inputs = [given.text if isinstance(given, TextPrompt) else given.ids for given in request.inputs]
    optional = {
        "input": inputs[0] if len(inputs) == 1 else inputs,
        "instruction": request.instruction,
        "dimensions": request.dimensions,
        "user": request.user,
    }
    return msgspec.json.encode(named | {name: value for name, value in optional.items() if value is not None})


def read_embeddings(dialect: Dialect, request: Embed, reply: Reply) -> Embeddings:
    """The answer to a request for embeddings.

    Raises:
        schemas.errors.BackendError: the answer is an error, or malformed.
    """
    answer = read_json(reply.body, RemoteEmbeddings)
    if answer.data is None:
        raise event_failure(read_json(reply.body, RemoteAnswer))
    # By index: the order is not guaranteed, and duplicates show in the check below.
    vectors = {_place(entry, place): _numbers(entry.embedding) for place, entry in enumerate(answer.data)}
    if sorted(vectors) != list(range(len(request.inputs))):
        raise malformed("not one vector for each input")
    usage = Usage(answer.usage.prompt_tokens if answer.usage is not None else 0, 0)
    # The client asked the remote in its own words, but a remote may have ignored `encoding_format`.
    relayed = reply.body if same_dialect(dialect, request) and _has_requested_form(request, answer.data) else None
    ordered = tuple(vectors[place] for place in range(len(vectors)))
    return Embeddings(answer.model or request.model, ordered, usage, relayed)


def _has_requested_form(request: Embed, data: tuple[RemoteEmbedding, ...]) -> bool:
    """Whether the answer has the requested encoding. Node's SDK takes numbers for base64 and makes empty vectors."""
    packed = request.encoding == "base64"
    return all(isinstance(entry.embedding, str) == packed and entry.index is not None for entry in data)


def _place(entry: RemoteEmbedding, place: int) -> int:
    return place if entry.index is None else entry.index


def _numbers(vector: tuple[float, ...] | str) -> tuple[float, ...]:
    """The numbers of a vector, which may be in base64."""
    if not isinstance(vector, str):
        return vector
    try:
        return decode_vector(vector)
    except ValueError:
        raise malformed("a vector that is not base64 of floats") from None
