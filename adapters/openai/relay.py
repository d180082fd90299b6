"""Operations beside chats, completions and embeddings, which a remote of the protocol may have.

A request for one is relayed as it came, JSON or a multipart form, with the remote's name of the model; the answer goes
back as it came. The table is the whole of it: another operation is another row. Those with `scoring` are also done by
models here (`pooling.scores`), and any model shortens conversations (`responses.compact`). Nothing here does the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from adapters.base import JSON, Call, Outbound, Route
from adapters.body import parse
from adapters.formats.multipart import form_field, is_form, with_field
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.decode import read_model
from adapters.openai.remote.encode_request import raw_fields
from adapters.openai.responses.compact import COMPACT
from schemas.errors import InvalidRequest, MalformedBody, UnsupportedFeature
from schemas.openai import scores as wire
from schemas.openai import tei
from schemas.openai.responses import Compaction, CompactRequest
from schemas.origin import Origin, Relay, Scoring


class _Row(NamedTuple):
    """An operation: its name, its path, and how a remote is called.

    `remote`: the path at the remote, by default ours without `/v1`. `beside_v1`: that path is not below `/v1` there.
    `body` and `answer` are those of models here. `fields`: as of `Route`, for a body in another form at the same path;
    `nameless`: bodies need not name a model.
    `refused`: fields that would name something that is stored here, which a remote does not have -> what to send.
    """

    name: str
    path: str
    summary: str
    remote: str | None = None
    beside_v1: bool = False
    form: bool = False
    scoring: Scoring | None = None
    body: Any = None
    answer: Any = None
    refused: tuple[tuple[str, str], ...] = ()
    fields: frozenset[str] = frozenset()
    nameless: bool = False

    @property
    def route(self) -> Route:
        """The route of our clients."""
        summary = self.summary if self.body else f"{self.summary}, by a remote that does"
        how = {"body": self.body, "answer": self.answer, "form": self.form, "fields": self.fields}
        return Route("POST", self.path, self.name, "relay", summary, **how)


def _rerank(name: str, path: str, remote: str | None = None, *, beside_v1: bool = False) -> _Row:
    summary = "Rank documents (vLLM, Jina, Cohere)"
    return _Row(name, path, summary, remote, beside_v1, False, "rerank", wire.RerankRequest, wire.RerankAnswer)


def _score(name: str, path: str, remote: str | None = None) -> _Row:
    summary = "Score pairs of texts (vLLM)"
    return _Row(name, path, summary, remote, False, False, "score", wire.ScoreRequest, wire.ScoreAnswer)


def _tei(name: str, path: str, summary: str, scoring: Scoring, body: Any, answer: Any, *fields: str) -> _Row:
    """An operation of text-embeddings-inference, which serves one model."""
    return _Row(
        name,
        path,
        summary,
        path,
        beside_v1=True,
        scoring=scoring,
        body=body,
        answer=answer,
        fields=frozenset(fields),
        nameless=True,
    )


_STORED = ("previous_response_id", "Responses are stored here, not at the model's server: send its items as 'input'.")
_PREDICTIONS = tuple[tei.Prediction | tuple[tei.Prediction, ...], ...]
_SPARSE = tuple[tuple[tei.SparseValue, ...], ...]
_TOKENS = tuple[tuple[tuple[float, ...], ...], ...]
_TABLE = (
    _rerank("rerank", "/v1/rerank"),
    _rerank("rerank_unversioned", "/rerank", "/rerank"),
    _rerank("rerank_v2", "/v2/rerank", "/v2/rerank", beside_v1=True),
    _tei("rerank_texts", "/rerank", "Rank texts (TEI)", "rerank", tei.RankTexts, tuple[tei.RankedText, ...], "texts"),
    _tei("predict", "/predict", "Classify texts or pairs (TEI)", "classify", tei.Predict, _PREDICTIONS),
    _score("score", "/v1/score"),
    _score("score_unversioned", "/score", "/score"),
    _Row(
        "classify",
        "/classify",
        "Classify texts (vLLM)",
        "/classify",
        beside_v1=True,
        scoring="classify",
        body=wire.ClassifyRequest,
        answer=wire.ClassifyAnswer,
    ),
    _tei("embed_sparse", "/embed_sparse", "Make sparse vectors (TEI)", "sparse", tei.VectorsRequest, _SPARSE),
    _tei("embed_all", "/embed_all", "Make a vector of each token (TEI)", "tokens", tei.VectorsRequest, _TOKENS),
    _Row(
        "pooling",
        "/pooling",
        "Make a vector of each token (vLLM)",
        "/pooling",
        beside_v1=True,
        scoring="tokens",
        body=wire.PoolingRequest,
        answer=wire.PoolingAnswer,
    ),
    _Row("audio_transcriptions", "/v1/audio/transcriptions", "Transcribe audio", form=True),
    _Row("audio_translations", "/v1/audio/translations", "Translate audio", form=True),
    _Row("audio_speech", "/v1/audio/speech", "Turn text into audio"),
    _Row("image_generations", "/v1/images/generations", "Create images"),
    _Row("image_edits", "/v1/images/edits", "Edit images", form=True),
    _Row("image_variations", "/v1/images/variations", "Vary an image", form=True),
    _Row("moderations", "/v1/moderations", "Classify texts as harmful"),
    _Row(
        COMPACT,
        "/v1/responses/compact",
        "Shorten a conversation: its answers become one item",
        body=CompactRequest,
        answer=Compaction,
        refused=(_STORED,),
    ),
)
_BY_NAME = {row.name: row for row in _TABLE}

TOKENS = ("tokenize", "detokenize")
"""Operations beside `/v1` that models here have, too; of a remote of the dialect, its own answer is relayed."""


RELAY_ROUTES = tuple(row.route for row in _TABLE)
"""The routes of the table."""


def relayed_operations(dialect: Dialect) -> frozenset[tuple[str, str]]:
    """The dialect with each operation that is relayed."""
    return frozenset((dialect.name, name) for name in (*_BY_NAME, *TOKENS))


def read_relay(dialect: Dialect, name: str, body: bytes, call: Call) -> Relay:
    """The request for an operation of the table.

    Raises:
        schemas.errors.RequestError: the body is neither JSON nor a form, or names no model.
    """
    media_type = call.headers.get("content-type", JSON)
    if is_form(media_type):
        model = form_field(body, media_type, "model")
    else:
        media_type, fields = JSON, parse(body)
        if not isinstance(fields, dict):
            raise MalformedBody("The request body must be a JSON object.")
        for field, instead in _BY_NAME[name].refused if name in _BY_NAME else ():
            if fields.get(field) is not None:
                raise UnsupportedFeature(f"'{field}' is not supported. {instead}", feature=field, param=field)
        model = fields.get("model")
        if model is not None and not isinstance(model, str):
            raise InvalidRequest("Invalid value for 'model': Expected `str`.", param="model")
    if not model and name in _BY_NAME and _BY_NAME[name].nameless:
        model = call.catalog.default
    origin = Origin(dialect.protocol, dialect.name, name, body, media_type=media_type)
    scoring = None if is_form(media_type) else _BY_NAME[name].scoring
    model = read_model(dialect, model or "", call)
    return Relay(id=call.id, model=model, origin=origin, scoring=scoring, by_text=name == COMPACT)


def write_relay(request: Relay) -> Outbound:
    """The request for a remote, whose base URL ends in `/v1`."""
    origin, row = request.origin, _BY_NAME.get(request.origin.operation)
    if is_form(origin.media_type):
        body = with_field(origin.body, origin.media_type, "model", request.model)
    else:
        body = msgspec.json.encode(raw_fields(origin.body) | {"model": request.model})
    path, beside = (f"/{origin.operation}", True) if row is None else (row.remote, row.beside_v1)
    if path is None:
        assert row is not None
        path = row.path.removeprefix("/v1")
    return Outbound(path, body, headers=(("content-type", origin.media_type),), beside_v1=beside)
