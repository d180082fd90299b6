"""The intermediate representation (IR): every protocol's requests are decoded into it, answers are encoded from it.

The IR has no protocol's defaults, names or ranges: a dialect resolves those before it builds a `Generate`. None means
that the client did not say. Field names are those of vLLM and transformers.

An answer is a stream of events with the grammar

    Started Delta* Finished{one per choice} Usage          or an exception at any point

where `Relayed` may precede any event. Backends yield batches of events (`Events`): all that were ready at once, in
order, so that a burst becomes one socket write. A stream without `Usage`, the last event, is incomplete.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from schemas.origin import Origin as Origin
from schemas.origin import Relay, Unread
from schemas.prompts import ChatPrompt as ChatPrompt
from schemas.prompts import Conversation as Conversation
from schemas.prompts import ImagePart as ImagePart
from schemas.prompts import Message as Message
from schemas.prompts import Part as Part
from schemas.prompts import Prompt as Prompt
from schemas.prompts import TemplateOptions as TemplateOptions
from schemas.prompts import TextPart as TextPart
from schemas.prompts import TextPrompt as TextPrompt
from schemas.prompts import TokensPrompt as TokensPrompt
from schemas.prompts import ToolCall as ToolCall

# --- requests ---------------------------------------------------------------------------------------------------

SMALLEST_TOP_P = 1e-9  # for protocols whose 0 means the most likely token alone; the IR's interval is (0, 1]


class Sampling(msgspec.Struct, frozen=True):
    """How the next token is chosen. None turns a parameter off; dialects check the ranges.

    `repetition_penalty` multiplies over prompt and output; `presence_penalty` and `frequency_penalty` subtract over
    the output only. `bad_words` are texts that the output must not contain. `seed` has 64 bits, unsigned. `seed_drawn`:
    it is not the client's, so backends may ignore it.
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
    bad_words: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken: temperature 0, `do_sample` false, or no sampling parameter at all."""
        if self.temperature == 0 or self.do_sample is not None:  # an explicit choice; temperature 0 wins
            return self.temperature == 0 or not self.do_sample
        return self.temperature is None and self.top_k is None and self.top_p is None and self.typical_p is None


class Stopping(msgspec.Struct, frozen=True):
    """When a generation ends; `max_new_tokens` None: where the context ends. `include_stop` keeps a matched string."""

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
    """Which tools may be called. `names` are those of `named` and `allowed`; `required`: an `allowed` one must be."""

    mode: Literal["none", "auto", "required", "named", "allowed"]
    names: tuple[str, ...] = ()
    required: bool = False


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on the text. `value` is a decoded JSON schema, a regex, an EBNF, or None for `json_object`.

    "ebnf" is the notation of llama.cpp (GBNF) and XGrammar, or Lark's.
    """

    kind: Literal["json_schema", "json_object", "regex", "ebnf"]
    value: Any = None
    name: str | None = None
    strict: bool | None = None


class Output(msgspec.Struct, frozen=True):
    """A requested part of the answer: its usual name (`tensor`), the endpoint's, and whether it is sent as bytes."""

    tensor: str
    name: str
    binary: bool = False


Overflow = Literal["refuse", "truncate", "drop_turns"]
"""What a backend does when prompt and `max_new_tokens` exceed the context: refuse, generate what fits, or drop turns of
the conversation, the oldest first.
"""


class Generate(msgspec.Struct, frozen=True, kw_only=True):
    """A request to generate text.

    Several `prompts` and `n` give `len(prompts) * n` choices; choice `p * n + i` is the i-th answer to prompt p.
    `model_given` False: no name of the backend's is configured, and `model` is the endpoint's own.
    `logprobs_optional`: the client's protocol has null for a token without log-probability, so that a backend without
    any may answer.
    `keeps_partial`: if a backend times out, what it sent so far is the answer.
    `prompt_scores`: the answer has the log-probabilities of the prompt's tokens, each with so many alternatives.
    `returns_ids`: it has the ids of the prompt's tokens and of all generated ones.
    `background`: lowest priority, where a backend has priorities; no client can set it.
    `detached`: the answer is made whether or not the client stays, and what becomes of it is stored.
    `flow`: whose request it is, where several keys share a backend; requests of different flows are served in turn.
    `destinations`: `HOST:PORT` of the servers that an endpoint picker has chosen, the best one first.
    `extra` holds fields that no protocol here knows, `unknown` names them and nested ones, as paths, and `unread` names
    parts that the IR leaves out of the body. `hints` holds fields that are only passed on to a model
    (`reasoning_effort`, `service_tier`, `priority`, …); below the adapters only what a chat
    template takes is read.

    Server codecs alone read these: `stream_usage` (the stream reports the usage), `continuous_usage` (in every chunk),
    `answer_suffix` (text written after each choice), `legacy_functions` (tool calls are written in OpenAI's first form,
    `function_call`), `stored_items` (JSON of the conversation's items to store with the
    answer; None stores nothing), `conversation` and `outputs` (the selected parts of the answer; () is the protocol's
    usual ones).
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
    conversation: Conversation | None = None
    outputs: tuple[Output, ...] = ()
    n: int = 1
    best_of: int | None = None
    truncate_prompt_tokens: int | None = None
    overflow: Overflow = "refuse"
    keeps_partial: bool = False
    echo: bool = False
    suffix: str | None = None
    raw_prompt: bool = True
    logprobs: bool = False
    logprobs_optional: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    prompt_scores: int | None = None
    returns_ids: bool = False
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    legacy_functions: bool = False
    grammar: Grammar | None = None
    lora_adapter: str | None = None
    model_given: bool = True
    background: bool = False
    detached: bool = False
    flow: str = ""
    destinations: tuple[str, ...] = ()
    user: str | None = None
    client_request_id: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    hints: dict[str, Any] = {}  # msgspec copies an empty default for each instance
    extra: dict[str, Any] = {}
    unread: tuple[Unread, ...] = ()
    unknown: tuple[str, ...] = ()
    origin: Origin | None = None

    @property
    def foreign_fields(self) -> tuple[str, ...]:
        """The places of what only a server of the client's own protocol may understand."""
        return (*(part.param for part in self.unread), *self.unknown)


class Embed(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one vector per input; `flow` and `destinations` are as in `Generate`."""

    id: str
    model: str
    inputs: tuple[TextPrompt | TokensPrompt, ...]
    instruction: str | None = None
    lora_adapter: str | None = None
    encoding: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    flow: str = ""
    destinations: tuple[str, ...] = ()
    user: str | None = None
    client_request_id: str | None = None
    extra: dict[str, Any] = {}
    unknown: tuple[str, ...] = ()
    origin: Origin | None = None

    @property
    def foreign_fields(self) -> tuple[str, ...]:
        """The places of what only a server of the client's own protocol may understand."""
        return self.unknown


class Tokenize(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the token ids of a prompt.

    `tools` are those that a chat template renders; of `hints`, as in `Generate`, it reads those of reasoning.
    """

    id: str
    model: str
    prompt: Prompt
    tools: tuple[Tool, ...] = ()
    add_special_tokens: bool = True
    context_length: int | None = None  # of the model, for answers that have it
    hints: dict[str, Any] = {}
    unread: tuple[Unread, ...] = ()
    unknown: tuple[str, ...] = ()
    origin: Origin | None = None


Request = Generate | Embed | Tokenize | Relay


# --- events -----------------------------------------------------------------------------------------------------


class TopToken(msgspec.Struct, frozen=True):
    """One of the most likely tokens at a position. `logprob` is a natural logarithm."""

    id: int | None
    text: str
    logprob: float
    bytes: bytes | None = None


class Token(msgspec.Struct, frozen=True):
    """One token. `id` is None where the backend reports no ids.

    `text` is what the token adds to the visible text: "" while a character is incomplete, cut where a stop string
    ends the text. A special token's `text` is its name and not part of the visible text. `bytes` are the token's own
    bytes, where they differ from `text`.
    """

    id: int | None
    text: str
    logprob: float | None = None  # natural logarithm
    special: bool = False
    top: tuple[TopToken, ...] = ()
    bytes: bytes | None = None


class ToolDelta(msgspec.Struct, frozen=True):
    """A piece of the `index`-th tool call. The last `id`, `name` and `signature` count, the `arguments` concatenate."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    signature: str | None = None


class FinishReason(StrEnum):
    """Why a choice ended; each protocol has its own words for it."""

    EOS = "eos"
    STOP_STRING = "stop_string"
    STOP_TOKEN = "stop_token"
    LENGTH = "length"
    TOOL_CALL = "tool_call"
    CONTENT_FILTER = "content_filter"


TokenIds = Literal["model", "retokenised", "synthetic"]
"""The source of token ids: the model, a tokenizer of ours on the same text, or made up where a protocol needs ids."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The first event. Before it the HTTP status can still be chosen and another backend be tried; after it neither.

    `model` is the served model's own name. `prompts` holds each prompt's tokens if `echo`, `prompt_logprobs`,
    `prompt_scores` or `returns_ids` asked for them (the first token's logprob is None). `token_ids` is "model" only if
    all ids are the model's.
    """

    model: str
    prompt_tokens: int | None = None
    prompts: tuple[tuple[Token, ...], ...] = ()
    token_ids: TokenIds = "model"


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """What a choice gained. If there are `tokens`, their visible texts concatenate to `text`.

    `ids` are those of all tokens since the last delta, of reasoning and calls, too, if `Generate.returns_ids` asked.
    """

    choice: int = 0
    text: str = ""
    tokens: tuple[Token, ...] = ()
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolDelta, ...] = ()
    ids: tuple[int, ...] = ()


class Finished(Delta, frozen=True, tag="finished", kw_only=True):  # `type(event) is Delta` excludes it
    """The last delta of a choice, and its finish reason.

    `generated` counts all generated tokens, the end token and those of a stop string included. `stop` is the matched
    stop string. `seed` is the seed in effect (unsigned, 64 bits), from backends that know it.
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
    """The JSON that a remote of the request's own protocol and dialect sent, followed by the events decoded from it.

    `data` is an event, a whole answer or (`framed`) a run of events as they are written, with one event for all.
    The encoder forwards it for the events, so that unknown fields arrive. Only requests of that dialect have it.
    """

    data: bytes
    framed: bool = False


Event = Started | Delta | Finished | Usage | Relayed
Events = tuple[Event, ...]  # one batch; never empty when a backend yields it


class Embeddings(msgspec.Struct, frozen=True):
    """One vector of floats per input, in order. `relayed` is a remote's JSON, to be forwarded in their place."""

    model: str
    vectors: tuple[tuple[float, ...], ...]
    usage: Usage
    relayed: bytes | None = None


class TokenSpan(msgspec.Struct, frozen=True):
    """A token of a text and the half-open range of characters that it covers."""

    id: int
    text: str
    start: int
    stop: int


class Tokens(msgspec.Struct, frozen=True):
    """The tokens of a prompt; `text` is the prompt as tokenized (for a chat, its rendered template)."""

    spans: tuple[TokenSpan, ...]
    text: str
