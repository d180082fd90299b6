"""How a remote Triton is called: the IR to a generate request, and its responses back to events.

A stream of Triton's has no terminator, and a server that dies ends it as cleanly as one that is done. So the finish
reason is always asked for, and is what makes an answer complete. Remotes without that output (`finish_reason_output`
off in the dialect) are taken at their word: a clean end is the end, and was for the reason `eos`.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import msgspec

from adapters.base import Outbound, Reply
from adapters.triton.dialects import Dialect
from adapters.triton.generate import parameters
from adapters.triton.remote.decode_answer import AnswerReader
from adapters.triton.remote.failures import remote_failure
from schemas.errors import GatewayError, UnsupportedFeature
from schemas.ir import Events, Generate, Grammar, ImagePart, TextPrompt, TokensPrompt

# The feature that a request wants which needs a parameter the dialect lacks; of the others a parameter's name says it.
_FEATURES = {"structured_outputs": "grammar", "lora_name": "lora_adapters"}


class TritonClient:
    """The client face.

    Args:
        dialect: the row of the table that the remote speaks.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._heeded = {name for name, parameter in dialect.requests.parameters.items() if parameter.remote}

    def encode(self, request: Generate) -> Outbound:
        """Write a request.

        Raises:
            schemas.errors.UnsupportedFeature: the dialect cannot say it.
        """
        said = self._parameters(request)
        for name in said:
            if name not in self._heeded:
                raise _unsupported(_FEATURES.get(name, name))
        if request.origin is not None and request.origin.protocol == "triton":
            said = request.extra | {name: hint for name, hint in request.hints.items() if name in self._heeded} | said
        body = self._id(request) | self._prompt(request) | self._inputs(request)
        if any(isinstance(value, list | dict) for value in said.values()):
            body["sampling_parameters"] = msgspec.json.encode(said).decode()  # request parameters are scalars
        else:
            body["parameters"] = said
        operation = "generate_stream" if request.stream else "generate"
        return Outbound(f"/v2/models/{quote(request.model, safe='')}/{operation}", msgspec.json.encode(body))

    def decoder(self, request: Generate) -> AnswerReader:
        """A reader for the stream."""
        return AnswerReader(request, self._dialect)

    def decode(self, request: Generate, reply: Reply) -> Events:
        """The whole answer, as the complete stream of its events.

        Raises:
            schemas.errors.BackendError: it is an error, or makes no sense.
        """
        reader = AnswerReader(request, self._dialect)
        return reader.response(reply.body) + reader.close()

    def returns_token_ids(self, request: Generate) -> bool:
        """With the log-probabilities, and only then are there tokens."""
        return request.logprobs

    def error(self, reply: Reply) -> GatewayError:
        """What a reply with an error status means."""
        return remote_failure(reply)

    def _parameters(self, request: Generate) -> dict[str, Any]:
        said = parameters.write(request.sampling, request.stopping, self._dialect)
        if request.n > 1:
            said["n"] = request.n
        if request.best_of is not None and request.best_of > request.n:
            said["best_of"] = request.best_of
        if request.truncate_prompt_tokens is not None:
            said["truncate_prompt_tokens"] = request.truncate_prompt_tokens
        if request.logprobs:
            said["logprobs"] = request.top_logprobs
        if request.grammar is not None:
            said["structured_outputs"] = _structured_outputs(request.grammar)
        if request.lora_adapter is not None:
            said["lora_name"] = request.lora_adapter
        if self._dialect.answers.details:
            said["details"] = True
        return said

    def _id(self, request: Generate) -> dict[str, Any]:
        id, pattern = request.client_request_id or request.id, self._dialect.limits.id_pattern
        return {"id": id} if id and (pattern is None or re.fullmatch(pattern, id)) else {}

    def _prompt(self, request: Generate) -> dict[str, Any]:
        prompt = _text_prompt(request)
        if not prompt.images:
            return {"text_input": prompt.text}
        if self._dialect.requests.rules == "triton":
            return {"text_input": prompt.text, "image": [_base64(image) for image in prompt.images]}
        images = [{"type": "image_url", "image_url": image.ref} for image in prompt.images]
        return {"text_input": [{"type": "text", "text": prompt.text}, *images]}

    def _inputs(self, request: Generate) -> dict[str, Any]:
        """What is asked for beside the text. vLLM's backend streams only if an input says so, whatever the URL."""
        if self._dialect.answers.details:
            return {}
        inputs = {"stream": request.stream, "exclude_input_in_output": True}
        if not self._dialect.remote.finish_reason_output:
            if request.logprobs:
                raise _unsupported("logprobs")
            return inputs
        told = ("finish_reason", "num_input_tokens", "num_output_tokens", *(["logprobs"] if request.logprobs else []))
        return inputs | {f"return_{output}": True for output in told}


def _text_prompt(request: Generate) -> TextPrompt:
    """The one text that a request of this protocol can hold."""
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
    return image.ref.partition("base64,")[2] or image.ref


def _structured_outputs(grammar: Grammar) -> str:
    value = True if grammar.kind == "json_object" else grammar.value
    name = {"json_schema": "json"}.get(grammar.kind, grammar.kind)
    return msgspec.json.encode({name: value}).decode()


def _unsupported(feature: str) -> UnsupportedFeature:
    return UnsupportedFeature(f"The backend's protocol cannot say {feature.replace('_', ' ')}.", feature=feature)
