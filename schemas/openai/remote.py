"""Answers of remotes. A field that any known server omits is optional."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

# A negative count of a remote must not reach limits and statistics.
Count = Annotated[int, msgspec.Meta(ge=0)]


class RemoteTop(msgspec.Struct, frozen=True):
    """One of the most likely tokens at a position."""

    token: str
    logprob: float | None = None
    # OpenAI writes bytes as a list of numbers.
    bytes: tuple[Annotated[int, msgspec.Meta(ge=0, le=255)], ...] | None = None


class RemoteToken(RemoteTop, frozen=True):
    """One token of a chat."""

    top_logprobs: tuple[RemoteTop, ...] | None = None


class RemoteLogprobs(msgspec.Struct, frozen=True):
    """Either form: a chat's `content`, or the parallel lists of completions."""

    content: tuple[RemoteToken, ...] | None = None
    refusal: tuple[RemoteToken, ...] | None = None
    tokens: tuple[str, ...] | None = None
    token_logprobs: tuple[float | None, ...] | None = None
    top_logprobs: tuple[dict[str, float | None] | None, ...] | None = None
    text_offset: tuple[int, ...] | None = None


class RemotePart(msgspec.Struct, frozen=True):
    """A part of content that is a list. Databricks' `reasoning` has a `summary`, Mistral's `thinking` parts."""

    type: str = "text"
    text: str | None = None
    summary: tuple[RemotePart, ...] | None = None
    thinking: str | tuple[RemotePart, ...] | None = None


class RemoteFunction(msgspec.Struct, frozen=True):
    """A function call, or a piece of one."""

    name: str | None = None
    arguments: str | None = None


class RemoteToolCall(msgspec.Struct, frozen=True):
    """A tool call, or a piece of one."""

    # The bound keeps a remote from making the reader's tables large with one chunk.
    index: Annotated[int, msgspec.Meta(ge=0, lt=1024)] | None = None
    id: str | None = None
    function: RemoteFunction | None = None
    # Google's; of any type, since other servers may have other uses for the name.
    extra_content: Any = None


class RemoteMessage(msgspec.Struct, frozen=True):
    """A message, or what a chunk adds to one."""

    content: str | tuple[RemotePart, ...] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: tuple[RemoteToolCall, ...] | None = None
    extra_content: Any = None


class RemoteChoice(msgspec.Struct, frozen=True):
    """A choice of any kind of answer. `stop_reason` (vLLM's) is the stop string or stop token that matched."""

    index: int = 0
    message: RemoteMessage | None = None
    delta: RemoteMessage | None = None
    text: str | None = None
    logprobs: RemoteLogprobs | None = None
    finish_reason: str | None = None
    # Any: a string, a number or null; other servers have other uses for the name, which must not fail the decoding.
    stop_reason: Any = None


class RemotePromptDetails(msgspec.Struct, frozen=True):
    """Details of the prompt's token count."""

    cached_tokens: Count | None = None


class RemoteCompletionDetails(msgspec.Struct, frozen=True):
    """Details of the answer's token count."""

    reasoning_tokens: Count | None = None


class RemoteUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    prompt_tokens: Count = 0
    completion_tokens: Count | None = None
    prompt_tokens_details: RemotePromptDetails | None = None
    completion_tokens_details: RemoteCompletionDetails | None = None


class RemoteEmbedding(msgspec.Struct, frozen=True):
    """One vector: numbers, or base64."""

    embedding: tuple[float, ...] | str
    index: int | None = None


class RemoteEmbeddings(msgspec.Struct, frozen=True):
    """Embeddings. An error has no `data`."""

    data: tuple[RemoteEmbedding, ...] | None = None
    model: str | None = None
    usage: RemoteUsage | None = None


class RemoteAnswer(msgspec.Struct, frozen=True):
    """A complete answer, one event, or an error of either, in OpenAI's, TGI's, vLLM's or Databricks' form."""

    model: str | None = None
    choices: tuple[RemoteChoice, ...] | None = None
    usage: RemoteUsage | None = None
    object: str | None = None
    # Any: an object (OpenAI) or a string (TGI).
    error: Any = None
    error_type: str | None = None
    error_code: str | None = None
    message: str | None = None
    code: Any = None
