"""The IR to a request for a remote TGI or MindIE. What the dialect cannot express is refused, never dropped.

`details` are always requested, because only they have the finish reason; the prompt never is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Outbound
from adapters.outbound import image_url, inexpressible
from adapters.tgi.dialects import Dialect
from schemas.ir import ChatPrompt, Embed, Generate, Grammar, Part, Prompt, Sampling, TextPart, TextPrompt


def write_request(dialect: Dialect, request: Generate) -> Outbound:
    """Encode a request, with the fields of its origin that this server does not know.

    Raises:
        schemas.errors.UnsupportedFeature: the dialect cannot express the request.
    """
    for feature, needed in _needs(dialect, request).items():
        if needed:
            raise inexpressible(feature)
    # Unknown fields of a client of this protocol are passed on; known parameters overwrite them.
    extra = dict(request.extra)
    parameters = extra.pop("parameters", {}) | _parameters(dialect, request)
    body = extra | {"inputs": _inputs(dialect, request.prompts[0]), "parameters": parameters}
    # Not `/`, whose answers are lists and whose defaults differ.
    return Outbound("/generate_stream" if request.stream else "/generate", msgspec.json.encode(body))


def passes_on(request: Generate | Embed, name: str) -> bool:
    """Whether the field `name` of the client's body, a path, is sent on."""
    from_tgi = request.origin is not None and request.origin.protocol == "tgi"
    if isinstance(request, Generate) and name in request.hints:
        return False  # of a chat (`/vertex`), which is written anew
    return from_tgi and not set(".[") & set(name.removeprefix("parameters."))


def _needs(dialect: Dialect, request: Generate) -> dict[str, bool]:
    """Feature -> whether the request needs it and the dialect has no parameter for it, or an ineffective one."""
    sampling, stopping = request.sampling, request.stopping
    lacking = {
        name
        for name in _OPTIONAL_PARAMETERS
        if name not in dialect.requests.parameters or name in dialect.requests.ineffective
    }
    return {
        "prompts": len(request.prompts) != 1,
        "tools": bool(request.tools) and (request.tool_choice is None or request.tool_choice.mode != "none"),
        "suffix": bool(request.suffix),
        "logit_bias": bool(sampling.logit_bias),
        "min_p": bool(sampling.min_p),
        "bad_words": bool(sampling.bad_words),
        "presence_penalty": bool(sampling.presence_penalty),
        "min_new_tokens": stopping.min_new_tokens > 0,
        "stop_token_ids": bool(stopping.stop_token_ids),
        "ignore_eos": stopping.ignore_eos,
        # `n` is sent as `best_of`, which TGI refuses in streams and for greedy decoding.
        "n": request.n > 1 and (request.stream or "best_of" not in dialect.requests.parameters or sampling.greedy),
        "best_of": (request.best_of or request.n) > request.n,
        "prompt_logprobs": request.prompt_logprobs and request.stream,
        "logprobs": request.logprobs and not dialect.answers.scores,
        "top_logprobs": request.top_logprobs > 0 and "top_n_tokens" in lacking,
        "grammar": request.grammar is not None
        and ("grammar" in lacking or request.grammar.kind in ("json_object", "ebnf")),
        "lora_adapters": request.lora_adapter is not None and "adapter_id" in lacking,
        "frequency_penalty": bool(sampling.frequency_penalty) and "frequency_penalty" in lacking,
        "typical_p": sampling.typical_p not in (None, 1.0) and "typical_p" in lacking,
        "watermark": sampling.watermark and "watermark" in lacking,
    }


_OPTIONAL_PARAMETERS = ("top_n_tokens", "grammar", "adapter_id", "frequency_penalty", "typical_p", "watermark")


def _parameters(dialect: Dialect, request: Generate) -> dict[str, Any]:
    stopping, limit = request.stopping, request.stopping.max_new_tokens
    parameters = _sampling(dialect, request.sampling) | {
        "max_new_tokens": dialect.remote.unlimited_max_new_tokens if limit is None else limit,
        "stop": stopping.stop or None,
        "truncate": request.truncate_prompt_tokens,
        "details": True,
        "decoder_input_details": request.prompt_logprobs or None,
        "best_of": request.n if request.n > 1 else None,
        "top_n_tokens": request.top_logprobs or None,
        "grammar": _grammar(request.grammar),
        "adapter_id": request.lora_adapter,
        # The server codec puts the prompt in front itself.
        "return_full_text": False,
    }
    # A parameter that the dialect does not know was refused above, unless its value is neutral.
    return {
        name: value for name, value in parameters.items() if value is not None and name in dialect.requests.parameters
    }


def _sampling(dialect: Dialect, sampling: Sampling) -> dict[str, Any]:
    forced = sampling.temperature == 0 or sampling.top_p == 0  # greedy, by values that TGI refuses
    greedy = forced or sampling.greedy
    parameters: dict[str, Any] = {
        "do_sample": not greedy if forced or dialect.requests.warpers_sample else sampling.do_sample,
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
        "watermark": sampling.watermark or None,
    }
    if greedy and (forced or dialect.requests.warpers_sample):
        return parameters  # any warper would enable sampling
    return parameters | {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p if sampling.top_p != 1.0 else None,
        "typical_p": sampling.typical_p if sampling.typical_p != 1.0 else None,
    }


def _grammar(grammar: Grammar | None) -> dict[str, Any] | None:
    if grammar is None:
        return None
    if grammar.kind == "regex":
        return {"type": "regex", "value": grammar.value}
    named = {"name": grammar.name, "strict": grammar.strict}
    named = {name: value for name, value in named.items() if value is not None}
    if named:
        return {"type": "json_schema", "value": named | {"schema": grammar.value}}
    # "json" is understood by all versions that have grammars; "json_schema" only where a name or `strict` needs it.
    return {"type": "json", "value": grammar.value}


def _inputs(dialect: Dialect, prompt: Prompt) -> str | list[dict[str, str]]:
    if isinstance(prompt, TextPrompt):
        if dialect.requests.list_inputs and prompt.images:
            raise inexpressible("images")
        return _with_markdown_images(prompt)
    if not isinstance(prompt, ChatPrompt):
        raise inexpressible("token_prompts")
    if not dialect.requests.list_inputs or len(prompt.messages) != 1:
        raise inexpressible("chat")
    [turn] = prompt.messages
    if turn.role != "user" or not turn.content:
        raise inexpressible("chat")
    content = (TextPart(turn.content),) if isinstance(turn.content, str) else turn.content
    return [_part(part) for part in content]


def _with_markdown_images(prompt: TextPrompt) -> str:
    places = prompt.image_places or (0,) * len(prompt.images)
    text, done = "", 0
    for image, place in zip(prompt.images, places, strict=True):
        # The inverse of `inputs._with_markdown_images`.
        text += f"{prompt.text[done:place]}![]({image_url(image)})"
        done = place
    return text + prompt.text[done:]


def _part(part: Part) -> dict[str, str]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if part.kind == "embeddings":
        raise inexpressible("image_embeds")
    return {"type": "image_url", "image_url": part.ref}
