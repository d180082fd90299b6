"""The client codec: the IR to a generate request for a remote Triton, and its responses to events.

A stream of Triton has no terminator: a clean end of the connection does not show that the answer is complete. So the
finish reason is always requested, and an answer is complete once it has one. Of remotes without that output
(`finish_reason_output` off in the dialect) a clean end is taken as the end of the answer, with the reason `eos`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from adapters.base import Outbound, Reply
from adapters.triton.dialects import Dialect
from adapters.triton.generate.parameters import write as write_parameters
from adapters.triton.remote.decode_answer import AnswerReader
from adapters.triton.remote.failures import remote_failure
from adapters.written_client import FoldingClient
from schemas.errors import GatewayError, UnsupportedFeature
from schemas.ir import Embed, Events, Generate, Grammar, ImagePart, TextPrompt, TokensPrompt
from schemas.left_out import left_out

# Parameter -> the feature that it stands for. Other parameters have the name of their feature.
_FEATURES = {"structured_outputs": "grammar", "lora_name": "lora_adapters"}


class Asked(NamedTuple):
    """A request: its id, or "", the elements of inputs by name (one of an input of its own), and its parameters."""

    id: str
    inputs: dict[str, Any]
    parameters: dict[str, Any]


class TritonClient(FoldingClient):
    """The client codec.

    Args:
        dialect: that of the remote.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._known = {name for name, parameter in dialect.requests.parameters.items() if parameter.remote}

    def encode(self, request: Generate) -> Outbound:
        """Encode a request.

        Raises:
            schemas.errors.UnsupportedFeature: the dialect cannot express it.
        """
        asked = self.asked(request)
        body = {"id": asked.id} | asked.inputs if asked.id else asked.inputs
        if asked.parameters:
            body = body | {"parameters": asked.parameters}
        # The name is one path segment; a "/" in it is escaped.
        operation = "generate_stream" if request.stream else "generate"
        return Outbound(f"/v2/models/{quote(request.model, safe='')}/{operation}", msgspec.json.encode(body))

    def asked(self, request: Generate) -> Asked:
        """A request as the model's inputs and the request's parameters, whatever carries them.

        Raises:
            schemas.errors.UnsupportedFeature: the dialect cannot express it.
        """
        parameters = self._parameters(request)
        for name in parameters:
            if name not in self._known:
                raise _unsupported(_FEATURES.get(name, name))
        # Fields of Triton's protocol mean nothing to other remotes, and those of other protocols nothing to this one.
        if request.origin is not None and request.origin.protocol == "triton":
            hints = {name: hint for name, hint in request.hints.items() if name in self._known}
            parameters = request.extra | hints | parameters
        inputs = self._prompt(request) | self._inputs(request)
        if any(isinstance(value, list | dict) for value in parameters.values()):
            inputs["sampling_parameters"] = msgspec.json.encode(parameters).decode()  # request parameters are scalars
            parameters = {}
        return Asked(self._id(request), inputs, parameters)

    def decoder(self, request: Generate) -> AnswerReader:
        """The decoder of the streamed answer to `request`."""
        return AnswerReader(request, self._dialect)

    def decode(self, request: Generate, reply: Reply) -> Events:
        """The events of a non-streamed answer to `request`, as one complete stream.

        Raises:
            schemas.errors.BackendError: the answer is an error or violates the protocol.
        """
        reader = AnswerReader(request, self._dialect)
        # A whole answer is a stream of one response.
        return reader.response(reply.body) + reader.close()

    def returns_token_ids(self, request: Generate) -> bool:
        """Whether log-probabilities are requested: only their output has tokens."""
        return request.logprobs

    def ignored(self, request: Generate | Embed) -> tuple[str, ...]:
        """None of a Triton client: they are request parameters, which are passed on."""
        from_triton = request.origin is not None and request.origin.protocol == "triton"
        return tuple(name for name in left_out(request, self._known) if not (from_triton and name in request.extra))

    def error(self, reply: Reply) -> GatewayError:
        """The error that a reply with an error status stands for."""
        return remote_failure(reply)

    def _parameters(self, request: Generate) -> dict[str, Any]:
        values = write_parameters(request.sampling, request.stopping, self._dialect)
        if request.n > 1:
            values["n"] = request.n
        if request.best_of is not None and request.best_of > request.n:
            values["best_of"] = request.best_of
        if request.truncate_prompt_tokens is not None:
            values["truncate_prompt_tokens"] = request.truncate_prompt_tokens
        if request.logprobs:
            # 0 asks for the token's own log-probability.
            values["logprobs"] = request.top_logprobs
        if request.grammar is not None:
            values["structured_outputs"] = _structured_outputs(request.grammar)
        if request.lora_adapter is not None:
            values["lora_name"] = request.lora_adapter
        if self._dialect.answers.details:
            # MindIE's details have the finish reason, without which an answer is not complete.
            values["details"] = True
        return values

    def _id(self, request: Generate) -> str:
        id, pattern = request.client_request_id or request.id, self._dialect.limits.id_pattern
        # The id only labels the request: one that the remote would refuse is left out.
        return id if pattern is None or re.fullmatch(pattern, id) else ""

    def _prompt(self, request: Generate) -> dict[str, Any]:
        prompt = _text_prompt(request)
        if not prompt.images:
            return {"text_input": prompt.text}
        if self._dialect.requests.rules == "triton":
            # vLLM's backend has an input tensor of base64 images beside the text.
            return {"text_input": prompt.text, "image": [_base64(image) for image in prompt.images]}
        if any(image.kind == "embeddings" for image in prompt.images):
            raise _unsupported("image_embeds")
        images = [{"type": "image_url", "image_url": image.ref} for image in prompt.images]
        return {"text_input": [{"type": "text", "text": prompt.text}, *images]}

    def _inputs(self, request: Generate) -> dict[str, Any]:
        """The inputs beside the prompt. vLLM's backend streams only if the input `stream` is set, whatever the URL."""
        if self._dialect.answers.details:
            return {}
        inputs = {"stream": request.stream, "exclude_input_in_output": True}
        if not self._dialect.remote.finish_reason_output:
            if request.logprobs and not request.logprobs_optional:
                raise _unsupported("logprobs")
            return inputs
        outputs = [
            "finish_reason",
            "num_input_tokens",
            "num_output_tokens",
            *(["logprobs"] if request.logprobs else []),
        ]
        return inputs | {f"return_{output}": True for output in outputs}


def _text_prompt(request: Generate) -> TextPrompt:
    """The prompt of a request, which in this protocol is one text."""
    lacking = {
        "several prompts": len(request.prompts) != 1,
        "suffix": bool(request.suffix),
        "tools": bool(request.tools),
        "prompt_logprobs": request.prompt_logprobs,
        "token_prompts": isinstance(request.prompts[0], TokensPrompt),
    }
    for feature, asked in lacking.items():
        if asked:
            raise _unsupported(feature)
    prompt = request.prompts[0]
    if not isinstance(prompt, TextPrompt):
        raise _unsupported("chat")
    return prompt


def _base64(image: ImagePart) -> str:
    if image.kind != "data":
        raise _unsupported("images")
    # The tensor holds plain base64: the prefix of a `data:` URI is cut off.
    return image.ref.partition("base64,")[2] or image.ref


def _structured_outputs(grammar: Grammar) -> str:
    # As a JSON text: vLLM's backend reads the parameter as a string.
    value = True if grammar.kind == "json_object" else grammar.value
    name = {"json_schema": "json", "ebnf": "grammar"}.get(grammar.kind, grammar.kind)
    return msgspec.json.encode({name: value}).decode()


def _unsupported(feature: str) -> UnsupportedFeature:
    return UnsupportedFeature(f"The backend's protocol cannot say {feature.replace('_', ' ')}.", feature=feature)
