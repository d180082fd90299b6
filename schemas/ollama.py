"""Ollama's API on the wire: `/api/chat`, `/api/generate`, `/api/embed` and the descriptions of models.

In requests null means absent. The dialect checks ranges, and the decoder keeps unknown fields. Durations are in
nanoseconds. In answers, fields that are 0 or empty are left out where Ollama leaves them out.
Source: Ollama's `docs/api.md` and `api/types.go`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from schemas.openai.answers import TokenLogprob
from schemas.openai.remote import RemoteToken

# --- requests -------------------------------------------------------------------------------------------------------


class Function(msgspec.Struct, frozen=True):
    """The function of a tool."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, frozen=True):
    """A tool. The only `type` is "function"."""

    function: Function
    type: str | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The function that a call names; `arguments` is an object, not a text."""

    name: str
    arguments: dict[str, Any] = {}
    index: int | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool in the conversation."""

    function: CalledFunction
    id: str | None = None
    type: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of the conversation; `images` are bare base64."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: tuple[str, ...] | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Options(msgspec.Struct, frozen=True):
    """Sampling parameters, and how a runner loads a model, which no request changes here."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] | None = None
    # Without effect here, and named to the client.
    repeat_last_n: int | None = None
    num_keep: int | None = None
    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    numa: bool | None = None
    low_vram: bool | None = None


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What both forms of generation have. `keep_alive`: seconds, or a duration such as "5m"."""

    model: str
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: float | str | None = None
    truncate: bool | None = None
    shift: bool | None = None


class ChatRequest(_Asked, frozen=True, kw_only=True):
    """Body of `/api/chat`."""

    messages: tuple[Message, ...] | None = None
    tools: tuple[Tool, ...] | None = None


class GenerateRequest(_Asked, frozen=True, kw_only=True):
    """Body of `/api/generate`. `raw`: no chat template. `context`: token ids of an earlier answer (deprecated)."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: tuple[int, ...] | None = None
    raw: bool | None = None
    images: tuple[str, ...] | None = None


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/api/embed`."""

    model: str
    input: str | tuple[str, ...] | None = None
    dimensions: int | None = None
    truncate: bool | None = None
    options: Options | None = None
    keep_alive: float | str | None = None


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/api/embeddings`, the older form for one text."""

    model: str
    prompt: str | None = None
    options: Options | None = None
    keep_alive: float | str | None = None


class ShowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/api/show`; `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


# --- answers --------------------------------------------------------------------------------------------------------


class WrittenFunction(msgspec.Struct, frozen=True):
    """The function of a written call; `arguments` is an object."""

    index: int
    name: str
    arguments: msgspec.Raw


class WrittenCall(msgspec.Struct, frozen=True):
    """A complete call of a tool."""

    id: str
    function: WrittenFunction


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of an answer, or a piece of one."""

    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET
    thinking: str = ""
    tool_calls: tuple[WrittenCall, ...] = ()


# The defaults of `content`, `response` and `done` are no values of theirs, so that they are never left out.
class ChatAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An answer of `/api/chat`, or one line of its stream; the counts and durations are in the last one."""

    model: str
    created_at: str
    message: Said
    done: bool | msgspec.UnsetType = msgspec.UNSET
    done_reason: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0


class GenerateAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An answer of `/api/generate`, or one line of its stream; the counts and durations are in the last one."""

    model: str
    created_at: str
    response: str | msgspec.UnsetType = msgspec.UNSET
    thinking: str = ""
    done: bool | msgspec.UnsetType = msgspec.UNSET
    done_reason: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class EmbedAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer of `/api/embed`."""

    model: str
    embeddings: tuple[tuple[float, ...], ...]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class EmbeddingsAnswer(msgspec.Struct, frozen=True):
    """The answer of `/api/embeddings`."""

    embedding: tuple[float, ...]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model's file; empty where that is nothing."""

    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: tuple[str, ...] = ()
    parameter_size: str = ""
    quantization_level: str = ""


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of `/api/tags`. `size` is in bytes, 0 if it is not known."""

    name: str
    model: str
    modified_at: str
    size: int = 0
    digest: str
    details: Details


class ModelList(msgspec.Struct, frozen=True):
    """The answer of `/api/tags`."""

    models: tuple[ListedModel, ...]


class RunningModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of `/api/ps`."""

    name: str
    model: str
    size: int = 0
    digest: str
    details: Details
    expires_at: str
    size_vram: int = 0
    context_length: int = 0


class RunningList(msgspec.Struct, frozen=True):
    """The answer of `/api/ps`."""

    models: tuple[RunningModel, ...]


class ModelDescription(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer of `/api/show`."""

    template: str = ""
    details: Details
    model_info: dict[str, Any]
    capabilities: tuple[str, ...]
    modified_at: str


class Version(msgspec.Struct, frozen=True):
    """The answer of `/api/version`."""

    version: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error: the body of a response, or the last line of a stream."""

    error: str = ""


# --- answers of remotes ---------------------------------------------------------------------------------------------


class RemoteMessage(msgspec.Struct, frozen=True):
    """The message of a remote's answer, or a piece of it."""

    content: str | None = None
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None


class RemoteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One object of a remote's answer, of either form of generation, or an error."""

    model: str | None = None
    message: RemoteMessage | None = None
    response: str | None = None
    thinking: str | None = None
    done: bool = False
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    logprobs: tuple[RemoteToken, ...] | None = None
    error: str | None = None


class RemoteEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """A remote's answer of `/api/embed`."""

    model: str | None = None
    embeddings: tuple[tuple[float, ...], ...] | None = None
    prompt_eval_count: int | None = None
    error: str | None = None
