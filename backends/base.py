"""The interface of backends, and what each can do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

import msgspec

from schemas.catalog import TokenizerInfo
from schemas.errors import UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Embed,
    Embeddings,
    Events,
    Generate,
    Prompt,
    Tokenize,
    Tokens,
)
from schemas.left_out import PLACES, left_out
from schemas.origin import Relay, RelayedAnswer, Scoring
from schemas.scores import Score, Scores


class Feature(StrEnum):
    """A part of a request that not every backend supports."""

    CHAT = "chat"
    TOKEN_PROMPTS = "token_prompts"
    IMAGES = "images"
    TOOLS = "tools"
    GRAMMAR = "grammar"
    LOGPROBS = "logprobs"
    TOP_LOGPROBS = "top_logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    LOGIT_BIAS = "logit_bias"
    MIN_P = "min_p"
    BAD_WORDS = "bad_words"
    TEMPLATE_OPTIONS = "template_options"
    BEST_OF = "best_of"
    SUFFIX = "suffix"
    WATERMARK = "watermark"
    LORA = "lora_adapters"
    TRUNCATION = "truncation"


class Capabilities(msgspec.Struct, frozen=True):
    """What a backend supports, and its limits.

    `tokenizer` names the vocabulary: token ids mean the same on all backends with an equal name, `tokenizer_info`
    describes the tokenizer. None: not known. `max_choices` bounds prompts times choices of one request;
    `context_length` is in tokens of prompt and answer. `context_lengths` are those of a server's models, by their names
    or "" for any, where it reports them. `lora_adapters` are the LoRA adapters that it has, if known: the values of
    `lora_adapter` that it takes, and with `models_are_loras` of a served entity's `model`, also if there are none.
    `raw_text` False: it takes conversations only. `relays` are the dialects and operations whose bodies it sends on as
    they came, `scoring` what it does itself of scoring and classification. `known` False: the model is still loading,
    and only `generates` says what it will support, as far as its folder tells.
    """

    known: bool = True
    generates: bool | None = True  # False: a model that makes embeddings or scores only; None: not known yet
    features: frozenset[Feature] = frozenset()
    raw_text: bool = True
    relays: frozenset[tuple[str, str]] = frozenset()
    embeddings: bool = False
    scoring: frozenset[Scoring] = frozenset()
    tokenize: bool = False
    max_choices: int = 128  # OpenAI's documented maximum of `n`
    context_length: int | None = None
    context_lengths: Mapping[str, int] = {}
    vocab_size: int | None = None
    tokenizer: str | None = None
    tokenizer_info: TokenizerInfo | None = None
    dtype: str | None = None
    device: str | None = None
    lora_adapters: tuple[str, ...] = ()
    models_are_loras: bool = False


class Health(msgspec.Struct, frozen=True):
    """The state of a backend.

    `ready`: it can answer. `loading`: it cannot answer yet, and no error is known. `failed`: it cannot answer because
    of an error. `detail` is the error; of a ready backend, the reason why others are preferred.
    """

    status: Literal["ready", "loading", "failed"]
    detail: str = ""


class EngineState(msgspec.Struct, frozen=True):
    """The last state report of a native engine.

    `running` and `waiting` are sequences now, and `swapped` those of the waiting that have something in the swap space,
    of which the share `swap_usage` is taken. `kv_usage` is the share of the KV cache's blocks in use, from 0 to 1, and
    `kv_touched` the share that was ever in use, whose memory is taken. `resident_bytes` is the memory of the engine's
    process. The others count since the start of the engine: preemptions, tokens looked up and found in the prefix
    cache, and with speculation the verifications of drafts, their tokens and those of them that were right.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries: int
    prefix_hits: int
    kv_touched: float = 0.0
    resident_bytes: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    swapped: int = 0
    swap_usage: float = 0.0


class NotPrepared(Exception):
    """What a backend's options name cannot be had or read; the text is for the operator."""


# `runtime_checkable`, because the backends of a configuration are found at run time and most have no engine.
@runtime_checkable
class RunsEngine(Protocol):
    """A backend with native engines, whose states it knows."""

    @property
    def engine_states(self) -> Mapping[str, EngineState | None]:
        """The last report of each engine, by the engine's name; None while it does not run."""
        ...


@runtime_checkable
class Relays(Protocol):
    """A backend that sends requests on as they came: those of `Capabilities.relays`."""

    async def relay(self, request: Relay) -> RelayedAnswer:
        """The remote's answer.

        Raises:
            schemas.errors.UnsupportedOperation: the remote does not have the operation.
        """
        ...


@runtime_checkable
class ScoresTexts(Protocol):
    """A backend that scores and classifies texts itself: what `Capabilities.scoring` names."""

    async def score(self, request: Score) -> Scores:
        """The numbers of each pair or text, in order.

        Raises:
            schemas.errors.GatewayError: an input does not fit the model, or the model failed.
        """
        ...


@runtime_checkable
class WaitsForEngine(Protocol):
    """A backend whose requests wait for the next engine when theirs has ended."""

    def expect_no_engine(self) -> None:
        """Let requests fail at once when the engine ends: whoever would start the next one is gone."""
        ...


@runtime_checkable
class AnswersWhole(Protocol):
    """A backend that can give a whole answer at once, which takes less than a generator of one batch."""

    async def answer(self, request: Generate) -> Events:
        """All events of the answer to a request that is not for a stream, as `Backend.generate` yields them.

        Raises:
            schemas.errors.GatewayError: there is none. The request may go to another backend.
        """
        ...


class Sink(Protocol):
    """Takes batches of a stream where they arrive, while somebody waits for the generator's next one."""

    def ready(self) -> bool:
        """Whether a batch may be given now. To be asked before each one."""
        ...

    def take(self, events: Events) -> None:
        """Take a batch of texts alone, which the generator then does not yield."""
        ...


@runtime_checkable
class FeedsSink(Protocol):
    """A backend that can give most batches of a stream without waking the task that waits for them."""

    def generate_into(self, request: Generate, sink: Sink) -> AsyncGenerator[Events, None]:
        """As `Backend.generate`, but for the batches that the sink has taken."""
        ...


@runtime_checkable
class KnowsIgnored(Protocol):
    """A backend that knows which fields have no effect: it may send some on, or its model may not take some."""

    def ignored(self, request: Generate | Embed | Tokenize) -> tuple[str, ...]:
        """The fields among `request.unknown`, a `Generate`'s `unread` and its hints that have no effect."""
        ...


class Backend(Protocol):
    """A source of answers: scripted, a remote server, or a native engine.

    `generate` yields batches of events, each with all that was ready. The events of a whole answer follow the grammar
    `Started Delta* Finished{one per choice} Usage`; an answer without its `Usage` ends in an exception. Closing the
    generator cancels the work at any point: its `finally` frees sequences and sockets.
    """

    name: str
    capabilities: Capabilities

    async def start(self) -> None:
        """Prepare to answer; returns once the backend accepts requests.

        Raises:
            schemas.errors.BackendUnavailable: the backend cannot start.
        """
        ...

    def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        """Answer a request.

        Raises:
            schemas.errors.GatewayError: at any point. Before `Started`, the request may go to another backend.
        """
        ...

    async def embed(self, request: Embed) -> Embeddings:
        """Compute one vector per input, in order."""
        ...

    async def tokenize(self, request: Tokenize) -> Tokens:
        """Tokenize a prompt as the model would, with its chat template and special tokens."""
        ...

    async def healthy(self) -> Health:
        """The current state. Does not wait for running requests."""
        ...

    async def aclose(self) -> None:
        """Stop and free all resources. Idempotent."""
        ...


def check_unread(request: Generate | Tokenize, ignored: Collection[str]) -> None:
    """Refuse a request with parts that the IR cannot express, unless its body is sent on with them.

    Args:
        request: the request.
        ignored: the places of what is not sent on.

    Raises:
        schemas.errors.UnsupportedFeature: names the first such part.
    """
    for part in request.unread:
        if part.param in ignored:
            raise UnsupportedFeature(part.refusal, feature=part.feature, param=part.param, code=part.code)


def ignored_fields(request: Generate | Embed | Tokenize, backend: Backend) -> tuple[str, ...]:
    """The unknown fields of a request that have no effect on this backend's answer.

    Raises:
        schemas.errors.UnsupportedFeature: a part that the IR cannot express is not sent on.
    """
    # Most requests ask for nothing that could be left out; to know more a remote has to encode them. First: whether an
    # object has a protocol's methods takes longer to find out than all else here.
    if not left_out(request) and not (isinstance(request, Generate) and any(map(_has_variables, request.prompts))):
        return ()
    ignored = backend.ignored(request) if isinstance(backend, KnowsIgnored) else left_out(request, PLACES)
    if isinstance(request, Generate):
        check_unread(request, ignored)
    return ignored


def _has_variables(prompt: Prompt) -> bool:
    return isinstance(prompt, ChatPrompt) and bool(prompt.template.variables)
