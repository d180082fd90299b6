"""The kinds of servers that can be called, as data: which faces speak to them, and what they can be asked.

A kind is what the entry points of `gateway.backends` name, and is called like a backend's class. A server may speak
several protocols; a request goes to the first face that can say it, because that one tells the most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapters import anthropic as _anthropic
from adapters import databricks as _databricks
from adapters import openai as _openai
from adapters import tgi as _tgi
from adapters import triton as _triton
from adapters.base import Adapter, ClientCodec, EmbeddingCodec
from backends.base import Feature
from backends.remote.backend import RemoteBackend
from backends.remote.options import RemoteOptions


@dataclass(frozen=True, slots=True)
class Face:
    """One protocol that a server speaks, and the path below its URL where it does."""

    adapter: Adapter
    dialect: str
    prefix: str = ""

    def client(self) -> ClientCodec:
        """The client face."""
        return self.adapter.client(self.adapter.dialects[self.dialect])


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table.

    Attributes:
        faces: what it speaks, what tells the most first.
        features: what its protocols can say.
        health: a path that it answers quickly, below its URL.
        embeddings: whether its first face is asked for vectors.
    """

    faces: tuple[Face, ...]
    features: frozenset[Feature]
    health: str
    embeddings: bool = False

    def __call__(self, name: str, options: Mapping[str, Any]) -> RemoteBackend:
        """A backend of this kind.

        Raises:
            msgspec.ValidationError: the options are wrong.
        """
        faces = [(face.prefix, face.client()) for face in self.faces]
        vectors = faces[0][1] if self.embeddings else None
        assert vectors is None or isinstance(vectors, EmbeddingCodec)
        return RemoteBackend(name, options, faces=faces, features=self.features, health=self.health, embeddings=vectors)

    Options = RemoteOptions


_COMPLETIONS = frozenset(Feature) - {Feature.WATERMARK, Feature.LORA}
_CHATS = _COMPLETIONS - {Feature.TOKEN_PROMPTS, Feature.PROMPT_LOGPROBS, Feature.SUFFIX, Feature.BEST_OF}
_TGI = _COMPLETIONS | {Feature.WATERMARK, Feature.LORA}
_TRITON = frozenset(Feature) - {Feature.CHAT, Feature.TOKEN_PROMPTS, Feature.TOOLS, Feature.PROMPT_LOGPROBS}
_TRITON -= {Feature.SUFFIX, Feature.WATERMARK}


def _v1(dialect: str) -> Face:
    return Face(_openai.ADAPTER, dialect, "/v1")


openai = Kind((Face(_openai.ADAPTER, "openai"),), _COMPLETIONS, "/models", embeddings=True)
mindie_openai = Kind((Face(_openai.ADAPTER, "mindie-openai"),), _CHATS, "/models")
tgi = Kind((Face(_tgi.ADAPTER, "tgi"), _v1("openai")), _TGI, "/health")
tgi_09 = Kind((Face(_tgi.ADAPTER, "tgi-0.9"),), _TGI - {Feature.CHAT, Feature.TOOLS}, "/health")
mindie = Kind((Face(_tgi.ADAPTER, "mindie"), _v1("mindie-openai")), _CHATS | _TGI, "/health")
triton = Kind((Face(_triton.ADAPTER, "triton"),), _TRITON, "/v2/health/ready")
mindie_triton = Kind(
    (Face(_triton.ADAPTER, "mindie-triton"), _v1("mindie-openai")), _TRITON | _CHATS, "/v2/health/ready"
)
anthropic = Kind(
    (Face(_anthropic.ADAPTER, "anthropic"),), frozenset({Feature.CHAT, Feature.TOOLS, Feature.IMAGES}), "/v1/models"
)
databricks = Kind(
    (Face(_databricks.ADAPTER, "databricks"),), _COMPLETIONS, "/api/2.0/serving-endpoints", embeddings=True
)
