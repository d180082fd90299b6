"""The answers that are one reply of a backend, not a generation: embeddings, scores, token counts, relayed bodies."""

from __future__ import annotations

from contextlib import suppress

from adapters.base import Reply, ServerCodec
from adapters.optional import ScoringCodec, SummaryCodec
from backends.base import Capabilities, Feature, Relays, ScoresTexts, check_unread, ignored_fields
from gateway.http.accounting import RequestAccount
from gateway.routing.target import Target
from schemas.errors import ContextLengthExceeded, InvalidRequest, UnsupportedFeature, UnsupportedOperation
from schemas.ir import Embed, Generate, Request, Tokenize
from schemas.origin import Relay


async def reply_to(request: Request, target: Target, codec: ServerCodec, account: RequestAccount) -> Reply | Generate:
    """The answer of a target, in the client's protocol, or the filtered request for the text that is to be generated.

    Args:
        request: what was asked.
        target: answers it.
        codec: the protocol's.
        account: the request's; records usage, and fields without effect.

    Raises:
        schemas.errors.GatewayError: the target has no answer.
    """
    if target.filters is not None:
        # A body that is relayed is not filtered; a text in its place is.
        request = await target.filters.request(_by_text(request, codec) or request)
    if isinstance(request, Generate):
        return request
    if isinstance(request, Embed):
        return await _embedded(request, target, codec, account)
    if isinstance(request, Tokenize):
        return await _counted(request, target, codec, account)
    try:
        return await _scored(request, target, codec, account) or await _relayed(request, target)
    except UnsupportedOperation:
        if (asked := _by_text(request, codec)) is None:
            raise
        return asked


def _by_text(request: Request, codec: ServerCodec) -> Generate | None:
    """A request that is relayed as one for a text, which any model can write; None if it is of another kind.

    Raises:
        schemas.errors.RequestError: its body is invalid.
    """
    if not isinstance(request, Relay) or not request.by_text or not isinstance(codec, SummaryCodec):
        return None
    return codec.read_by_text(request)


async def _embedded(request: Embed, target: Target, codec: ServerCodec, account: RequestAccount) -> Reply:
    account.ignored = ignored_fields(request, target.backend)
    can = target.backend.capabilities
    if not can.embeddings:
        raise UnsupportedFeature(f"The model '{request.model}' {_no_embeddings(can)}.", feature="embeddings")
    try:
        vectors = await target.backend.embed(target.addressed(request))
    except InvalidRequest as error:
        # Codecs write errors without the request for vectors, so its field is named here, as backends name it.
        if error.param is None and (isinstance(error, ContextLengthExceeded) or _wants_text(error)):
            error.param = "input"
        raise
    account.usage = vectors.usage
    return codec.encode_embeddings(request, vectors)


def _wants_text(error: InvalidRequest) -> bool:
    return isinstance(error, UnsupportedFeature) and error.feature == Feature.TOKEN_PROMPTS


def _no_embeddings(can: Capabilities) -> str:
    if "sparse" in can.scoring:
        return "makes sparse vectors: POST /embed_sparse"
    return "makes a vector of each token: POST /embed_all" if "tokens" in can.scoring else "has no embeddings"


async def _scored(request: Relay, target: Target, codec: ServerCodec, account: RequestAccount) -> Reply | None:
    """The answer of a model here to a request for scores; None if the request is for a remote."""
    backend = target.backend
    if request.scoring not in backend.capabilities.scoring:
        return None
    if not isinstance(backend, ScoresTexts) or not isinstance(codec, ScoringCodec):
        return None
    score = codec.read_score(target.addressed(request))
    account.ignored = score.unknown
    scores = await backend.score(score)
    account.usage = scores.usage
    return codec.encode_scores(score, scores)


async def _counted(request: Tokenize, target: Target, codec: ServerCodec, account: RequestAccount) -> Reply:
    """The tokens of a prompt, as a remote of the client's dialect counts them or else as the backend does."""
    if request.origin is not None and target.filters is None:
        with suppress(UnsupportedOperation):
            return await _relayed(Relay(id=request.id, model=request.model, origin=request.origin), target)
    check_unread(request, [part.param for part in request.unread])
    account.ignored = ignored_fields(request, target.backend)
    return codec.encode_tokens(request, await target.backend.tokenize(target.addressed(request)))


async def _relayed(request: Relay, target: Target) -> Reply:
    """The answer of the target's remote to a request that is relayed.

    Raises:
        schemas.errors.UnsupportedOperation: the target is no remote that has the operation.
    """
    backend, origin = target.backend, request.origin
    if not isinstance(backend, Relays) or (origin.dialect, origin.operation) not in backend.capabilities.relays:
        name = origin.operation.replace("_", " ")
        raise UnsupportedOperation(f"The model '{request.model}' does not support {name}.", feature=origin.operation)
    answer = await backend.relay(target.addressed(request))
    return Reply(answer.body, media_type=answer.media_type)
