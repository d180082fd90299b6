"""The seam every backend is written against, and the features by which a request is checked before any work."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

import msgspec

from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import (
    ChatPrompt,
    Embed,
    Embeddings,
    Events,
    Generate,
    ImagePart,
    Message,
    Prompt,
    TextPrompt,
    Tokenize,
    Tokens,
    TokensPrompt,
)


class Feature(StrEnum):
    """What a request may need and not every backend can do."""

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
    BEST_OF = "best_of"
    SUFFIX = "suffix"
    WATERMARK = "watermark"
    LORA = "lora_adapters"


class Capabilities(msgspec.Struct, frozen=True):
    """What a backend can do and how far.

    `tokenizer` is a name for its vocabulary: backends with the same one mean the same by a token id. None: not known.
    `lora_adapters` are the LoRA adapters that it has, if known: the values of `lora_adapter` that it takes, and the
    only values of `model` that a served entity of it may have.
    """

    generates: bool = True
    features: frozenset[Feature] = frozenset()
    embeddings: bool = False
    tokenize: bool = False
    max_choices: int = 128
    context_length: int | None = None
    vocab_size: int | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    device: str | None = None
    lora_adapters: tuple[str, ...] = ()


class Health(msgspec.Struct, frozen=True):
    """`ready`: it can answer now. `loading`: it cannot yet, and nothing is wrong. `failed`: something is.

    A ready backend's `detail`, if any, says why others are to be preferred to it.
    """

    status: Literal["ready", "loading", "failed"]
    detail: str = ""


class EngineState(msgspec.Struct, frozen=True):
    """What an engine of our own last said of itself.

    `kv_usage` is the share of the KV cache that sequences hold. The counts are since the engine started; prefixes are
    counted in tokens.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prefix_queries: int
    prefix_hits: int


@runtime_checkable
class RunsEngine(Protocol):
    """A backend with an engine that tells of itself."""

    @property
    def engine_state(self) -> EngineState | None:
        """Its last word; None while there is no engine."""
        ...


class Backend(Protocol):
    """A source of answers.

    `generate` yields batches of events, each all that was ready at once; the first event is `Started`, the last
    `Usage`. Closing the generator cancels the work, whatever its state: its `finally` frees what it holds.
    """

    name: str
    capabilities: Capabilities

    async def start(self) -> None:
        """Get ready to answer; returns once the backend may be asked.

        Raises:
            schemas.errors.BackendUnavailable: it will not come up.
        """
        ...

    def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        """Answer a request.

        Raises:
            schemas.errors.GatewayError: at any point; before `Started` nothing was answered.
        """
        ...

    async def embed(self, request: Embed) -> Embeddings:
        """One vector per input."""
        ...

    async def tokenize(self, request: Tokenize) -> Tokens:
        """The prompt's tokens as the model would see them."""
        ...

    async def healthy(self) -> Health:
        """The state now; never blocks on work."""
        ...

    async def aclose(self) -> None:
        """Stop, and free everything. Idempotent."""
        ...


def needs(request: Generate) -> frozenset[Feature]:
    """The features without which `request` cannot be answered as asked."""
    kinds = {type(prompt) for prompt in request.prompts}
    sampling = request.sampling
    wanted = (
        (Feature.CHAT, ChatPrompt in kinds),
        (Feature.TOKEN_PROMPTS, TokensPrompt in kinds),
        (Feature.IMAGES, any(map(_has_images, request.prompts))),
        (Feature.TOOLS, bool(request.tools) and (request.tool_choice is None or request.tool_choice.mode != "none")),
        (Feature.GRAMMAR, request.grammar is not None),
        (Feature.LOGPROBS, request.logprobs),
        (Feature.TOP_LOGPROBS, request.top_logprobs > 0),
        (Feature.PROMPT_LOGPROBS, request.prompt_logprobs),
        (Feature.LOGIT_BIAS, bool(sampling.logit_bias)),
        (Feature.MIN_P, sampling.min_p is not None),
        (Feature.BEST_OF, request.best_of is not None and request.best_of > request.n),
        (Feature.SUFFIX, bool(request.suffix)),
        (Feature.WATERMARK, sampling.watermark),
        (Feature.LORA, request.lora_adapter is not None),
    )
    return frozenset([feature for feature, asked in wanted if asked])


def check(request: Generate, capabilities: Capabilities, model: str) -> None:
    """Refuse a request that a backend of these capabilities cannot answer as asked.

    Raises:
        schemas.errors.InvalidRequest: it asks for too many choices, or for a LoRA adapter that is not there.
        schemas.errors.UnsupportedFeature: names the first feature that is missing.
    """
    if not capabilities.generates:
        raise UnsupportedFeature(f"The model '{model}' makes embeddings, and no text.", feature="generate")
    choices = len(request.prompts) * max(request.n, request.best_of or 1)
    if choices > capabilities.max_choices:
        raise InvalidRequest(
            f"The request asks for {choices} choices in all; the model '{model}' makes at most "
            f"{capabilities.max_choices} at a time.",
            param="n",
        )
    missing = needs(request) - capabilities.features
    if missing:
        feature = min(missing, key=list(Feature).index)
        raise UnsupportedFeature(
            f"The model '{model}' does not support {feature.value.replace('_', ' ')} yet.",
            feature=feature.value,
        )
    lora = request.lora_adapter
    if lora is not None and capabilities.lora_adapters and lora not in capabilities.lora_adapters:
        raise InvalidRequest(f"The model '{model}' has no LoRA adapter '{lora}'.", param="lora_adapter")


def _has_images(prompt: Prompt) -> bool:
    if isinstance(prompt, TextPrompt):
        return bool(prompt.images)
    if isinstance(prompt, TokensPrompt):
        return False
    return any(map(_shows_image, prompt.messages))


def _shows_image(message: Message) -> bool:
    return isinstance(message.content, tuple) and any(isinstance(part, ImagePart) for part in message.content)
