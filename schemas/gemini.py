"""Google's Gemini API on the wire: `models/{model}:generateContent` and its relatives, version `v1beta`.

Names are in camel case on the wire. In requests null means absent. The dialect checks ranges, and the decoder keeps
unknown fields. Source: the Gemini API reference, and the `google-genai` package.
"""

from __future__ import annotations

from typing import Any

import msgspec

# --- content, of requests and answers -------------------------------------------------------------------------------


class Blob(msgspec.Struct, frozen=True, rename="camel"):
    """Base64 `data` of a media type."""

    mime_type: str
    data: str
    display_name: str | None = None


class FileData(msgspec.Struct, frozen=True, rename="camel"):
    """A file by its URI: of the Files API, or an address of the web."""

    file_uri: str
    mime_type: str | None = None
    display_name: str | None = None


class FunctionCall(msgspec.Struct, frozen=True, rename="camel"):
    """A call of a function; `args` is an object."""

    name: str
    args: dict[str, Any] | None = None
    id: str | None = None


class FunctionResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a call; `response` is an object."""

    name: str
    response: dict[str, Any] | None = None
    id: str | None = None


# One struct for all kinds of parts, not a union: the API adds kinds, and an unknown one must not fail the decoding.
class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a message: it has one of these fields. `thought`: the text is reasoning."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    # For servers of the same dialect alone, hence of any type.
    executable_code: Any = None
    code_execution_result: Any = None
    tool_call: Any = None
    tool_response: Any = None
    # Hints.
    video_metadata: Any = None
    media_resolution: Any = None


class Content(msgspec.Struct, frozen=True, rename="camel"):
    """A message. `role` is "user" or "model"; without one it is the user's."""

    parts: tuple[Part, ...] = ()
    role: str | None = None


# --- requests -------------------------------------------------------------------------------------------------------


class FunctionDeclaration(msgspec.Struct, frozen=True, rename="camel"):
    """A function that may be called. `parameters` is in the API's own form of schemas."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None
    # What a function returns, and whether it blocks: without effect on what a model writes.
    response: Any = None
    response_json_schema: Any = None
    behavior: Any = None


class Tool(msgspec.Struct, frozen=True, rename="camel"):
    """A set of functions, or one of the tools that run at Google."""

    function_declarations: tuple[FunctionDeclaration, ...] | None = None
    google_search: Any = None
    google_search_retrieval: Any = None
    google_maps: Any = None
    code_execution: Any = None
    url_context: Any = None
    computer_use: Any = None
    file_search: Any = None
    mcp_servers: Any = None


class FunctionCallingConfig(msgspec.Struct, frozen=True, rename="camel"):
    """`mode`: AUTO, ANY (one must be called, of the allowed ones), NONE or VALIDATED."""

    mode: str | None = None
    allowed_function_names: tuple[str, ...] | None = None


class ToolConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Which functions may be called."""

    function_calling_config: FunctionCallingConfig | None = None
    retrieval_config: Any = None
    include_server_side_tool_invocations: bool | None = None


class ThinkingConfig(msgspec.Struct, frozen=True, rename="camel"):
    """How much a model may think (0 tokens: not at all, -1: as it likes), and whether the answer has its thoughts."""

    include_thoughts: bool | None = None
    thinking_budget: int | None = None
    thinking_level: str | None = None


class GenerationConfig(msgspec.Struct, frozen=True, rename="camel"):
    """Options of an answer."""

    stop_sequences: tuple[str, ...] | None = None
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | None = None
    response_modalities: tuple[str, ...] | None = None
    candidate_count: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_logprobs: bool | None = None
    logprobs: int | None = None
    thinking_config: ThinkingConfig | None = None
    # For servers of the same dialect alone, hence of any type.
    speech_config: Any = None
    image_config: Any = None
    media_resolution: Any = None
    enable_enhanced_civic_answers: Any = None


class GenerateRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Body of `:generateContent` and `:streamGenerateContent`. `model` repeats that of the path."""

    contents: tuple[Content, ...] | Content
    system_instruction: Content | str | None = None
    tools: tuple[Tool, ...] | None = None
    tool_config: ToolConfig | None = None
    safety_settings: Any = None
    generation_config: GenerationConfig | None = None
    cached_content: str | None = None
    model: str | None = None
    service_tier: str | None = None
    store: bool | None = None


class CountRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Body of `:countTokens`: a conversation, or a whole request."""

    contents: tuple[Content, ...] | Content | None = None
    generate_content_request: GenerateRequest | None = None


class EmbedRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Body of `:embedContent`, and an item of a batch."""

    content: Content
    model: str | None = None
    task_type: str | None = None
    title: str | None = None
    output_dimensionality: int | None = None


class BatchRequest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Body of `:batchEmbedContents`."""

    requests: tuple[EmbedRequest, ...]


# --- answers --------------------------------------------------------------------------------------------------------


class WrittenCall(msgspec.Struct, frozen=True, rename="camel"):
    """A complete call of a function."""

    name: str
    args: msgspec.Raw
    id: str


class WrittenPart(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of an answer."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    thought: bool = False
    function_call: WrittenCall | None = None
    thought_signature: str | None = None


class WrittenContent(msgspec.Struct, frozen=True, rename="camel"):
    """The message of an answer, or a piece of it."""

    parts: tuple[WrittenPart, ...]
    role: str = "model"


class LogprobsCandidate(msgspec.Struct, frozen=True, rename="camel"):
    """A token, its id and the natural logarithm of its probability."""

    token: str
    token_id: int | None
    log_probability: float


class TopCandidates(msgspec.Struct, frozen=True, rename="camel"):
    """The most likely tokens at a place."""

    candidates: tuple[LogprobsCandidate, ...]


class LogprobsResult(msgspec.Struct, frozen=True, rename="camel"):
    """The tokens of a candidate, and the most likely ones at each place."""

    top_candidates: tuple[TopCandidates, ...]
    chosen_candidates: tuple[LogprobsCandidate, ...]


class Candidate(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One answer, or a piece of it."""

    content: WrittenContent
    index: int | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str | None = None
    avg_logprobs: float | None = None
    logprobs_result: LogprobsResult | None = None


class UsageMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Counts of tokens; those of thoughts are beside the candidates'."""

    prompt_token_count: int | msgspec.UnsetType = msgspec.UNSET
    candidates_token_count: int | msgspec.UnsetType = msgspec.UNSET
    total_token_count: int | msgspec.UnsetType = msgspec.UNSET
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None


class GenerateAnswer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An answer, or one object of its stream."""

    candidates: tuple[Candidate, ...] | msgspec.UnsetType = msgspec.UNSET
    usage_metadata: UsageMetadata | None = None
    model_version: str = ""
    response_id: str = ""


class Count(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of `:countTokens`."""

    total_tokens: int


class Vector(msgspec.Struct, frozen=True):
    """One embedding."""

    values: tuple[float, ...]


class EmbedAnswer(msgspec.Struct, frozen=True):
    """The answer of `:embedContent`."""

    embedding: Vector


class BatchAnswer(msgspec.Struct, frozen=True):
    """The answer of `:batchEmbedContents`."""

    embeddings: tuple[Vector, ...]


class Model(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A model; its name begins with `models/`."""

    name: str
    version: str
    display_name: str
    input_token_limit: int | None = None
    output_token_limit: int | None = None
    supported_generation_methods: tuple[str, ...] = ()


class ModelList(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A page of the models."""

    models: tuple[Model, ...] | msgspec.UnsetType = msgspec.UNSET
    next_page_token: str = ""


class Error(msgspec.Struct, frozen=True):
    """`status` is the name of a gRPC code."""

    code: int = 0
    message: str = ""
    status: str = ""


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error: the body of a response, or the last object of a stream."""

    error: Error = Error()


# --- answers of remotes ---------------------------------------------------------------------------------------------


class RemoteLogprob(msgspec.Struct, frozen=True, rename="camel"):
    """A token of a remote's answer."""

    token: str = ""
    token_id: int | None = None
    log_probability: float = 0.0


class RemoteTop(msgspec.Struct, frozen=True, rename="camel"):
    """The most likely tokens at a place."""

    candidates: tuple[RemoteLogprob, ...] = ()


class RemoteLogprobs(msgspec.Struct, frozen=True, rename="camel"):
    """The log-probabilities of a remote's answer."""

    chosen_candidates: tuple[RemoteLogprob, ...] = ()
    top_candidates: tuple[RemoteTop, ...] = ()


class RemoteCandidate(msgspec.Struct, frozen=True, rename="camel"):
    """One candidate of a remote's answer, or a piece of it."""

    content: Content | None = None
    index: int = 0
    finish_reason: str | None = None
    logprobs_result: RemoteLogprobs | None = None


class RemoteUsage(msgspec.Struct, frozen=True, rename="camel"):
    """A remote's counts."""

    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None


class PromptFeedback(msgspec.Struct, frozen=True, rename="camel"):
    """Why a remote answered nothing."""

    block_reason: str | None = None


class RemoteAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """One object of a remote's answer, or an error."""

    candidates: tuple[RemoteCandidate, ...] = ()
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: RemoteUsage | None = None
    model_version: str | None = None
    error: Error | None = None


class RemoteEmbeddings(msgspec.Struct, frozen=True, rename="camel"):
    """A remote's answer of either form of embeddings."""

    embeddings: tuple[Vector, ...] | None = None
    embedding: Vector | None = None
