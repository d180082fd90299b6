"""The internal request form (IR): what every protocol is decoded into and every answer is encoded from.

It holds no protocol's default, name or range: a dialect resolves those before it builds a `Generate`, and `None`
always means "the client did not say". Field names follow the field's common terms (vLLM, transformers).

An answer is a stream of events whose grammar is

    Started Delta* Finished{one per choice} Usage          or an exception at any point

where `Relayed` may stand before any of them.

Backends yield *batches* of events (`Events`): all that was ready at once, in order, so that a burst becomes one
socket write. A generation is complete only if `Usage`, the last event, was seen.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

# --- prompts ----------------------------------------------------------------------------------------------------


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """A piece of text in a message."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image"):
    """A picture by reference; adapters never touch its bytes.

    `ref` is a URL, a `data:` URI, bare base64 or a local path, and `kind` says which.
    """

    ref: str
    kind: Literal["url", "data", "path"]
    detail: str | None = None


Part = TextPart | ImagePart


class ToolCall(msgspec.Struct, frozen=True):
    """A whole call of a tool; `arguments` is the JSON text exactly as generated."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation. `role` is the client's word: system, developer, user, assistant, tool."""

    role: str
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """Raw text, tokenised with the model's special tokens and without a chat template.

    `images` are pictures the text refers to, in order; `image_places` says before which character of the text each
    stands. Protocols that carry pictures beside the text have no places.
    """

    text: str
    images: tuple[ImagePart, ...] = ()
    image_places: tuple[int, ...] = ()


class TokensPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """Token ids, used as they are."""

    ids: tuple[int, ...]


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """Messages, rendered by the model's own chat template."""

    messages: tuple[Message, ...]


Prompt = TextPrompt | TokensPrompt | ChatPrompt

# --- what is asked for ------------------------------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is chosen. Off = None; ranges are the dialect's business.

    `repetition_penalty` multiplies over prompt and output; `presence_penalty` and `frequency_penalty` subtract over
    the output only. `seed` is an unsigned 64-bit integer; `seed_drawn`: nobody asked for it, and who cannot take
    one does without.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    seed_drawn: bool = False
    watermark: bool = False

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken: temperature 0, or told so, or nothing that asks for chance."""
        if self.temperature == 0 or self.do_sample is not None:
            return self.temperature == 0 or not self.do_sample
        return self.temperature is None and self.top_k is None and self.top_p is None and self.typical_p is None


class Stopping(msgspec.Struct, frozen=True):
    """When a generation ends. `max_new_tokens` None = as far as the context reaches.

    `include_stop` decides whether the matched stop string stays in the text. It ends there either way.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False

    @property
    def shows_stop(self) -> bool:
        """Whether `include_stop` makes a difference."""
        return self.include_stop and bool(self.stop or self.stop_token_ids)


class Tool(msgspec.Struct, frozen=True):
    """A function the model may call; `parameters` is a JSON schema as decoded."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """`named` and `allowed` carry the tools' names; for `allowed`, `required` says whether one must be called."""

    mode: Literal["none", "auto", "required", "named", "allowed"]
    names: tuple[str, ...] = ()
    required: bool = False


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on the text. `value` is a decoded JSON schema, a regex, or None for "any JSON object"."""

    kind: Literal["json_schema", "json_object", "regex"]
    value: Any = None
    name: str | None = None
    strict: bool | None = None


class Origin(msgspec.Struct, frozen=True):
    """Where a request came from: its protocol's and dialect's names, the operation (a `Route.name`), and the body's
    bytes, so that a remote of the same protocol is sent what the client sent.
    """

    protocol: str
    dialect: str
    operation: str
    body: bytes = b""


Overflow = Literal["refuse", "truncate"]
"""What a backend does when the prompt and `max_new_tokens` exceed the context: refuse, or generate what still fits."""


class Generate(msgspec.Struct, frozen=True, kw_only=True):
    """A request to generate text.

    Several `prompts` and `n` give `len(prompts) * n` choices; choice `p * n + i` is the i-th answer to prompt p.
    `background`: nobody waits for it, and where a backend can tell, all else goes first; no client can ask for that.
    `extra` keeps fields that no protocol here knows. `hints` keeps fields that are passed on to a model and on which no
    answer depends (`reasoning_effort`, `service_tier`, `metadata`, `priority`, …); no code below the adapters reads it.

    Server codecs alone read these: `stream_usage` (the stream reports the usage), `continuous_usage` (in every chunk),
    `answer_suffix` (text written after each choice) and `stored_items` (JSON of the conversation's items to store with
    the answer; None stores nothing).
    """

    id: str
    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling = Sampling()
    stopping: Stopping = Stopping()
    stream: bool = False
    stream_usage: bool = False
    continuous_usage: bool = False
    answer_suffix: str = ""
    stored_items: bytes | None = None
    n: int = 1
    best_of: int | None = None
    truncate_prompt_tokens: int | None = None
    overflow: Overflow = "refuse"
    echo: bool = False
    suffix: str | None = None
    raw_prompt: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    grammar: Grammar | None = None
    adapter_id: str | None = None
    background: bool = False
    user: str | None = None
    client_request_id: str | None = None
    hints: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    origin: Origin | None = None


class Embed(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one vector per input."""

    id: str
    model: str
    inputs: tuple[TextPrompt | TokensPrompt, ...]
    instruction: str | None = None
    adapter_id: str | None = None
    encoding: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None
    client_request_id: str | None = None
    extra: dict[str, Any] = {}
    origin: Origin | None = None


class Tokenize(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the token ids of a prompt; `tools` are what a chat's model is told of."""

    id: str
    model: str
    prompt: Prompt
    tools: tuple[Tool, ...] = ()
    add_special_tokens: bool = True
    origin: Origin | None = None


Request = Generate | Embed | Tokenize

# --- what comes back --------------------------------------------------------------------------------------------


class TopToken(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a position. `logprob` is a natural logarithm."""

    id: int | None
    text: str
    logprob: float
    bytes: bytes | None = None


class Token(msgspec.Struct, frozen=True):
    """One token. `id` None = the backend does not tell ids.

    `text` is what the token adds to the visible text: "" while a character is incomplete, cut where a stop string
    ends the text. A special token's `text` is its own name and is not part of the visible text. `bytes` are the
    token's own bytes, where they differ from `text`.
    """

    id: int | None
    text: str
    logprob: float | None = None
    special: bool = False
    top: tuple[TopToken, ...] = ()
    bytes: bytes | None = None


class ToolDelta(msgspec.Struct, frozen=True):
    """A piece of the `index`-th tool call; `id` and `name` come with its first piece, `arguments` concatenate."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class FinishReason(StrEnum):
    """Why a choice ended, in nobody's dialect."""

    EOS = "eos"
    STOP_STRING = "stop_string"
    STOP_TOKEN = "stop_token"
    LENGTH = "length"
    TOOL_CALL = "tool_call"
    CONTENT_FILTER = "content_filter"


TokenIds = Literal["told", "retokenised", "synthetic"]
"""Whose the ids are: the model's own, a tokenizer's of ours for the same text, or nobody's where there must be one."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The hinge: before it an HTTP status can still be chosen and another backend tried; after it neither.

    `model` is the served model's own name. `prompts` holds each prompt's tokens if `echo` or `prompt_logprobs`
    asked for them (the first token's logprob is None). `token_ids` is not "told" where some may not be.
    """

    model: str
    prompt_tokens: int | None = None
    prompts: tuple[tuple[Token, ...], ...] = ()
    token_ids: TokenIds = "told"


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """What a choice gained. Where tokens are told, their visible texts concatenate to `text`."""

    choice: int = 0
    text: str = ""
    tokens: tuple[Token, ...] = ()
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolDelta, ...] = ()


class Finished(Delta, frozen=True, tag="finished", kw_only=True):
    """The last delta of a choice, and why it was the last.

    `generated` counts every generated token, the end token and those of a stop string included. `stop` is the stop
    string that matched. `seed` is the effective seed (u64), given by backends that know it.
    """

    reason: FinishReason
    generated: int | None = None
    stop: str | None = None
    seed: int | None = None


class Usage(msgspec.Struct, frozen=True, tag="usage"):
    """Token counts over all choices; the last event of every complete stream."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


class Relayed(msgspec.Struct, frozen=True, tag="relayed"):
    """What a remote of the request's own protocol and dialect sent, before the events that were read from it: the JSON
    of an event of its stream, or of its whole answer. The encoder of that protocol passes it on instead of the events,
    so that fields nobody here knows arrive. Others never see one.
    """

    data: bytes


Event = Started | Delta | Finished | Usage | Relayed
Events = tuple[Event, ...]


class Choice(msgspec.Struct, frozen=True):
    """One whole answer: the fold of a choice's deltas.

    `order` tells how the answer went, for protocols whose answers are made of blocks: (kind, characters) of thoughts,
    text and refusal, and ("calls", 0) where all calls stand. () is the usual order: as named, calls last.
    """

    index: int
    reason: FinishReason
    text: str = ""
    tokens: tuple[Token, ...] = ()
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    generated: int | None = None
    stop: str | None = None
    seed: int | None = None
    order: tuple[tuple[Literal["reasoning", "text", "refusal", "calls"], int], ...] = ()


class Timings(msgspec.Struct, frozen=True):
    """Seconds, by a monotonic clock: until the first event, and in all."""

    first_event: float
    total: float


class Completion(msgspec.Struct, frozen=True):
    """A whole answer: the fold of an event stream. `relayed` is a `Relayed`'s data, where there was one."""

    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    prompts: tuple[tuple[Token, ...], ...] = ()
    timings: Timings | None = None
    relayed: bytes | None = None
    token_ids: TokenIds = "told"


class Embeddings(msgspec.Struct, frozen=True):
    """One float vector per input, in order. `relayed` is what a remote of the request's own protocol and dialect sent,
    JSON to be passed on instead.
    """

    model: str
    vectors: tuple[tuple[float, ...], ...]
    usage: Usage
    relayed: bytes | None = None


class TokenSpan(msgspec.Struct, frozen=True):
    """A token of a text and the half-open range of characters it covers."""

    id: int
    text: str
    start: int
    stop: int


class Tokens(msgspec.Struct, frozen=True):
    """The tokens of a prompt; `text` is the prompt as tokenised (a chat's rendered template)."""

    spans: tuple[TokenSpan, ...]
    text: str
