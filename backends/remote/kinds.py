"""The kinds of remote servers, as data: which protocols a server speaks and which features those can express.

An entry point of `gateway.backends` names a kind, which is called like the class of a backend. A server may speak
several protocols. A request goes through the first one that can express it, so the most expressive stands first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from adapters import anthropic as _anthropic
from adapters import cohere as _cohere
from adapters import databricks as _databricks
from adapters import gemini as _gemini
from adapters import ollama as _ollama
from adapters import openai as _openai
from adapters import tgi as _tgi
from adapters import triton as _triton
from adapters.base import Adapter, ClientCodec, RemoteAdapter, Reply
from adapters.optional import EmbeddingCodec, RelayCodec
from backends.base import Feature
from backends.remote.asking import Spoken
from backends.remote.backend import RemoteBackend
from backends.remote.connect import MISSING, connect, problems_of
from backends.remote.context.lengths import Telling, of_listing
from backends.remote.grpc.connect import connect_rpc, is_installed, rpc_problems_of
from backends.remote.options import RemoteOptions
from backends.remote.servers import RemoteServers

SPOKEN_BY = dict.fromkeys(
    ("vllm", "sglang", "llama.cpp", "llama-server", "azure", "lmdeploy", "litellm", "groq", "mistral"),
    "openai",
) | {"claude": "anthropic", "tensorrt-llm": "triton", "text-generation-inference": "tgi", "huggingface": "tgi"}
"""The kinds of servers that are often named by their own names."""


@dataclass(frozen=True, slots=True)
class RemoteProtocol:
    """One protocol that a server speaks, and the path below the server's URL where it does.

    `model`: what requests name if no name is configured; None: the endpoint's own name. `over_rpc`: the server speaks
    the protocol over gRPC. `operations`: those of clients (`adapters.base.Route.name`) that go through it; none: all.
    """

    adapter: Adapter | RemoteAdapter
    dialect: str
    prefix: str = ""
    model: str | None = None
    over_rpc: bool = False
    operations: frozenset[str] = frozenset()

    def codec(self) -> ClientCodec:
        """The client codec of the protocol in this dialect."""
        make = self.adapter.rpc_client if self.over_rpc else self.adapter.client
        assert make is not None
        return make(self.adapter.dialects[self.dialect])


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table.

    Attributes:
        protocols: what the server speaks, the most expressive first.
        features: what those protocols can express. `options.features` of a backend may narrow it, never widen it.
        health: the path, below the server's URL, of a GET that is answered quickly.
        embeddings: whether the first protocol is used for embeddings.
        raw_text: whether the server takes text without a chat template.
        telling: how the server tells the context lengths of its models; None if it does not.
        is_ready: whether the answer to a health check says that the server is ready; None: its status says it.
    """

    protocols: tuple[RemoteProtocol, ...]
    features: frozenset[Feature]
    health: str
    embeddings: bool = False
    raw_text: bool = True
    telling: Telling | None = None
    is_ready: Callable[[Reply], bool] | None = None

    @property
    def over_rpc(self) -> bool:
        """Whether the server speaks gRPC, and so all of its protocols."""
        return self.protocols[0].over_rpc

    def __call__(self, name: str, options: Mapping[str, Any]) -> RemoteBackend | RemoteServers:
        """Make a backend of this kind.

        Raises:
            msgspec.ValidationError: the options are wrong.
        """
        read = msgspec.convert(options, RemoteOptions)
        if not read.urls:
            return self.one(name, read)
        return RemoteServers(name, {each.url: self.one(name, each) for each in read.servers}, read.routing)

    def one(self, name: str, options: RemoteOptions | Mapping[str, Any]) -> RemoteBackend:
        """Make a backend of one server.

        Raises:
            msgspec.ValidationError: the options are wrong, or a package is missing.
        """
        if self.over_rpc and not is_installed():
            raise msgspec.ValidationError(MISSING.format("grpc"))
        codecs = [
            Spoken(protocol.codec(), protocol.prefix, protocol.model, protocol.operations)
            for protocol in self.protocols
        ]
        embedder = codecs[0].codec if self.embeddings else None  # the first protocol, without a prefix
        assert embedder is None or isinstance(embedder, EmbeddingCodec)
        relay = codecs[0].codec
        return RemoteBackend(
            name,
            options,
            codecs=codecs,
            features=self.features,
            health=self.health,
            embeddings=embedder,
            raw_text=self.raw_text,
            provider=self.protocols[0].adapter.name,
            telling=self.telling,
            relay=relay if isinstance(relay, RelayCodec) else None,
            connecting=connect_rpc if self.over_rpc else connect,
            is_ready=self.is_ready,
        )

    def problems(self, options: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
        """What `start` would refuse of valid options: the path of each option, and why."""
        # Servers differ in their URLs alone, but the environment's proxy may be for some of them.
        for each in msgspec.convert(options, RemoteOptions).servers:
            problems = list(rpc_problems_of(each) if self.over_rpc else problems_of(each))
            yield from problems
            if problems:
                return

    # Without an annotation, and so no field of the dataclass: a constant with the name it has in backend classes.
    Options = RemoteOptions


# Feature sets are enumerated or joined, never "all but": a feature added to the enum is claimed by no remote until it
# is added here, once its codec can express it.
_CHAT = frozenset(
    {
        Feature.CHAT,
        Feature.IMAGES,
        Feature.TOOLS,
        Feature.GRAMMAR,
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
        Feature.LOGIT_BIAS,
        Feature.MIN_P,
        Feature.TRUNCATION,  # the server says when a conversation is too long
    }
)
# Completions (`/completions`) add what chats lack. `prompt_logprobs` is vLLM's extension.
_DATABRICKS = _CHAT | {
    Feature.TOKEN_PROMPTS,
    Feature.PROMPT_LOGPROBS,
    Feature.SUFFIX,
    Feature.BEST_OF,
    Feature.BAD_WORDS,
}
_OPENAI = _DATABRICKS | {Feature.TEMPLATE_OPTIONS}  # vLLM's `chat_template_kwargs` and relatives
# TGI 0.9 has no `/v1/chat/completions` (the Messages API came with 1.4): neither chats nor tools. `ChatText` adds them.
_TGI_09 = frozenset({Feature.IMAGES, Feature.LOGPROBS, Feature.PROMPT_LOGPROBS, Feature.WATERMARK})
# Chats, tools and prompts of token ids go through `/v1`, the second protocol of the kind.
_TGI = _TGI_09 | frozenset(
    {
        Feature.CHAT,
        Feature.TOOLS,
        Feature.GRAMMAR,
        Feature.TOKEN_PROMPTS,
        Feature.TOP_LOGPROBS,
        Feature.LOGIT_BIAS,
        Feature.MIN_P,
        Feature.BEST_OF,
        Feature.SUFFIX,
        Feature.LORA,
        Feature.TRUNCATION,
    }
)
# MindIE's pages have no grammars and log-probabilities. They leave out tools, too, but its server takes them
# (MindIE-LLM, src/server/endpoint/single_req_infer_interface/single_req_vllm_openai_infer_interface.cpp).
_MINDIE = frozenset({Feature.CHAT, Feature.IMAGES, Feature.TOOLS, Feature.TRUNCATION})
# No chats: Triton's generate extension takes one `text_input`. With a chat template, `ChatText` adds them.
_TRITON = frozenset(
    {
        Feature.IMAGES,
        Feature.GRAMMAR,
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
        Feature.LOGIT_BIAS,
        Feature.MIN_P,
        Feature.BAD_WORDS,
        Feature.BEST_OF,
        Feature.LORA,
    }
)
# The Messages API returns no log-probabilities.
# Of the options of a template, one: the answer goes on where a last turn of the assistant ends.
_ANTHROPIC = frozenset(
    {Feature.CHAT, Feature.TEMPLATE_OPTIONS, Feature.TOOLS, Feature.IMAGES, Feature.GRAMMAR, Feature.TRUNCATION}
)
# Ollama drops the oldest messages by itself, takes no ids, and lets the model choose among the tools.
_OLLAMA = frozenset(
    {
        Feature.CHAT,
        Feature.TOOLS,
        Feature.IMAGES,
        Feature.GRAMMAR,
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
        Feature.MIN_P,
        Feature.SUFFIX,
        Feature.TRUNCATION,
    }
)
# One conversation for each request, and no raw text.
_GEMINI = frozenset(
    {
        Feature.CHAT,
        Feature.TOOLS,
        Feature.IMAGES,
        Feature.GRAMMAR,
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
        Feature.TRUNCATION,
    }
)


# One conversation for each request, and neither raw text nor most parameters of sampling.
_RESPONSES = frozenset(
    {
        Feature.CHAT,
        Feature.TOOLS,
        Feature.IMAGES,
        Feature.GRAMMAR,
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
        Feature.TRUNCATION,
    }
)
# Log-probabilities are those of pieces of text, not of tokens.
_COHERE = frozenset({Feature.CHAT, Feature.TOOLS, Feature.IMAGES, Feature.GRAMMAR, Feature.TRUNCATION})


def _openai_at_v1(dialect: str, model: str | None = None) -> RemoteProtocol:
    """The OpenAI protocol that servers of other protocols offer beside their own."""
    return RemoteProtocol(_openai.ADAPTER, dialect, "/v1", model)


# vLLM's and SGLang's member, then OpenRouter's, Groq's and Mistral's. OpenAI's own listing has none.
_OPENAI_LENGTHS = Telling(
    "/models", of_listing("max_model_len", "context_length", "context_window", "max_context_length")
)
_TGI_LENGTH = Telling("/info", lambda answer: {"": answer["max_total_tokens"]})
_MINDIE_LENGTHS = Telling("/info", of_listing("max_total_tokens", models="models", name="model_id"))

openai = Kind(
    (RemoteProtocol(_openai.ADAPTER, "openai"),), _OPENAI, "/models", embeddings=True, telling=_OPENAI_LENGTHS
)
# Whoever speaks the API is answered by it; all others are better off with their own fields in chats.
openai_responses = Kind(
    (
        RemoteProtocol(_openai.RESPONSES, "openai", operations=_openai.RESPONSE_ROUTES),
        RemoteProtocol(_openai.BESIDE_RESPONSES, "openai"),
    ),
    _OPENAI,
    "/models",
    embeddings=True,
    telling=_OPENAI_LENGTHS,
)
responses = Kind(
    (RemoteProtocol(_openai.RESPONSES, "openai"),),
    _RESPONSES,
    "/models",
    embeddings=True,
    raw_text=False,
    telling=_OPENAI_LENGTHS,
)
mindie_openai = Kind((RemoteProtocol(_openai.ADAPTER, "mindie-openai"),), _MINDIE, "/models", telling=_OPENAI_LENGTHS)
# A TGI serves one model, and takes every other name than "tgi" in a chat for that of a LoRA adapter.
tgi = Kind(
    (RemoteProtocol(_tgi.ADAPTER, "tgi"), _openai_at_v1("openai", model="tgi")), _TGI, "/health", telling=_TGI_LENGTH
)
tgi_09 = Kind((RemoteProtocol(_tgi.ADAPTER, "tgi-0.9"),), _TGI_09, "/health", telling=_TGI_LENGTH)
mindie = Kind(
    (RemoteProtocol(_tgi.ADAPTER, "mindie"), _openai_at_v1("mindie-openai")),
    _MINDIE | {Feature.TOKEN_PROMPTS, Feature.LORA, Feature.PROMPT_LOGPROBS},
    "/health",
    telling=_MINDIE_LENGTHS,
)
triton = Kind((RemoteProtocol(_triton.ADAPTER, "triton"),), _TRITON, "/v2/health/ready")
triton_grpc = Kind(
    (RemoteProtocol(_triton.ADAPTER, "triton", over_rpc=True),),
    _TRITON,
    "/inference.GRPCInferenceService/ServerReady",
    is_ready=_triton.is_ready,
)
mindie_triton = Kind(
    (RemoteProtocol(_triton.ADAPTER, "mindie-triton"), _openai_at_v1("mindie-openai")),
    _MINDIE,
    "/v2/health/ready",
)
gemini = Kind(
    (RemoteProtocol(_gemini.ADAPTER, "gemini"),),
    _GEMINI,
    "/models",
    embeddings=True,
    raw_text=False,
    telling=Telling("/models/{model}", lambda answer: {"": answer["inputTokenLimit"]}),
)
ollama = Kind((RemoteProtocol(_ollama.ADAPTER, "ollama"),), _OLLAMA, "/api/version", embeddings=True)
anthropic = Kind(
    (RemoteProtocol(_anthropic.ADAPTER, "anthropic"),),
    _ANTHROPIC,
    "/v1/models",
    raw_text=False,
    telling=Telling("/v1/models/{model}", lambda answer: {"": answer["max_input_tokens"]}),
)
cohere = Kind(
    (RemoteProtocol(_cohere.ADAPTER, "cohere"),),
    _COHERE,
    "/v1/models",
    embeddings=True,
    raw_text=False,
    telling=Telling("/v1/models/{model}", lambda answer: {"": int(answer["context_length"])}),
)
databricks = Kind(
    (RemoteProtocol(_databricks.ADAPTER, "databricks"),), _DATABRICKS, "/api/2.0/serving-endpoints", embeddings=True
)
