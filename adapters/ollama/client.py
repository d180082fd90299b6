"""Client codec: how a remote server of Ollama's protocol is called."""

from __future__ import annotations

from adapters.ollama.dialects import Dialect
from adapters.ollama.outbound import relays, write_embed, write_request
from adapters.ollama.remote import StreamReader, read_answer, read_embeddings, read_failure
from adapters.written_client import EmbeddingClient
from schemas.ir import Embed, Generate
from schemas.left_out import left_out

_SENT = ("reasoning_effort", "thinking")
"""The hints that the protocol has a form for."""


class OllamaClient(EmbeddingClient[Dialect]):
    """Client codec of one dialect."""

    write_request = staticmethod(write_request)
    stream_reader = StreamReader
    read_answer = staticmethod(read_answer)
    read_failure = staticmethod(read_failure)
    write_embed = staticmethod(write_embed)
    read_embeddings = staticmethod(read_embeddings)

    def answers_plainly(self, request: Generate) -> bool:
        """Whether one text is asked for, and no stream: those are lines of JSON."""
        return not request.stream and super().answers_plainly(request)

    def ignored(self, request: Generate | Embed) -> tuple[str, ...]:
        """None of a body that is relayed; else all, since the request is written anew."""
        return () if relays(self._dialect, request) else left_out(request, _SENT)
