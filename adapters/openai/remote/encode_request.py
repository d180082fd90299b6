"""Requests for remotes of this protocol, encoded from the IR. What the remote cannot do is refused, never dropped.

Strategy: the body of a client that speaks the remote's own dialect is relayed field by field, with the remote's name
of the model. Two fields change, invisibly to the client: a stream is asked for its usage, because every stream of
events ends with one, and `echo` is taken out where the gateway knows the prompt's text itself. Every other request is
written anew from the IR, and refused if the dialect lacks one of its fields.
"""

from __future__ import annotations

from hashlib import sha256
from operator import attrgetter
from typing import Any

import msgspec

from adapters.openai.dialects import HINTS, Dialect
from adapters.openai.remote.messages import write_messages, write_part
from adapters.openai.responses.compact import COMPACT
from adapters.openai.responses.decode import OPERATION
from adapters.outbound import inexpressible
from schemas.ir import (
    ChatPrompt,
    Embed,
    Generate,
    Grammar,
    Prompt,
    Sampling,
    TemplateOptions,
    TextPrompt,
    TokensPrompt,
    Tool,
    ToolChoice,
)

_FEATURES = {
    "tools": "tools",
    "tool_choice": "tools",
    "response_format": "grammar",
    "echo": "prompt_logprobs",
}
"""A field of a request -> the feature that it is sent for, where the two have different names."""

_LONGEST_USER = 64
_HINTS = (*HINTS, "user")
"""Fields that no answer depends on."""

raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Decodes an object to its fields, each as the JSON that the client wrote."""


def is_chat_call(request: Generate) -> bool:
    """Whether the remote is called for a chat. A text that needs the chat template is sent as a user's message."""
    return isinstance(request.prompts[0], ChatPrompt) or not request.raw_prompt


def write_body(dialect: Dialect, request: Generate, named: dict[str, Any]) -> bytes:
    """The JSON of a request.

    Args:
        dialect: the remote's dialect.
        request: the request.
        named: the field that names the model, if any, and other fields that this kind of remote needs.

    Raises:
        schemas.errors.UnsupportedFeature: the dialect cannot express the request.
    """
    relays = same_dialect(dialect, request)
    is_plain = _is_plain(request) and (relays or _is_written_plainly(request))
    if not is_plain:
        asked = _inexpressible_features(dialect, request)
        if any(asked.values()):
            raise inexpressible(next(feature for feature, is_asked in asked.items() if is_asked))
    if relays:
        assert request.origin is not None
        return _relayed(dialect, request, request.origin.body, named)
    prompt, fields = _prompt(request), (_plain_fields if is_plain else _fields)(dialect, request)
    if {*fields}.difference(dialect.remote.remote_fields):
        lacking = next(field for field in fields if field not in dialect.remote.remote_fields)
        raise inexpressible(_FEATURES.get(lacking, lacking))
    return msgspec.json.encode(named | prompt | fields)


def same_dialect(dialect: Dialect, request: Generate | Embed) -> bool:
    """Whether the client speaks the remote's dialect, so that its body can be relayed."""
    origin = request.origin
    # A response's body is not relayed: remotes are called for chats, since few servers have the Responses API.
    if origin is None or not origin.body or origin.operation in (OPERATION, COMPACT):
        return False
    return (origin.protocol, origin.dialect) == (dialect.protocol, dialect.name)


def relays_answer(dialect: Dialect, request: Generate) -> bool:
    """Whether the remote's answer can be relayed, too: the gateway adds nothing to it."""
    # An echo that the remote did not write must be put before the text here.
    return same_dialect(dialect, request) and not request.answer_suffix and (not request.echo or asks_echo(request))


# What few requests ask for is compared at once.
_special = attrgetter(
    *("tools", "prompt_logprobs", "suffix", "best_of", "grammar", "sampling.watermark", "lora_adapter")
)
_rarely_written = attrgetter(
    *("n", "echo", "logprobs", "top_logprobs", "truncate_prompt_tokens", "tool_choice", "parallel_tool_calls", "hints"),
    *("sampling.min_p", "sampling.typical_p", "sampling.repetition_penalty", "sampling.logit_bias"),
    *("sampling.bad_words", "stopping.min_new_tokens", "stopping.stop_token_ids", "stopping.ignore_eos"),
)
_NOTHING_ASKED_FOR = Generate(id="", model="", prompts=())
_NOTHING_SPECIAL, _NOTHING_RARE = _special(_NOTHING_ASKED_FOR), _rarely_written(_NOTHING_ASKED_FOR)
_USUAL_TEMPLATE = TemplateOptions()


def _is_plain(request: Generate) -> bool:
    """Whether one text or chat asks for nothing that any dialect could lack but options of its template."""
    return (
        len(request.prompts) == 1
        and type(request.prompts[0]) in (ChatPrompt, TextPrompt)
        and _special(request) == _NOTHING_SPECIAL
    )


def _is_written_plainly(request: Generate) -> bool:
    """Whether a plain request has nothing but what `_plain_fields` writes."""
    prompt = request.prompts[0]
    usual = type(prompt) is TextPrompt or (type(prompt) is ChatPrompt and prompt.template == _USUAL_TEMPLATE)
    return usual and _rarely_written(request) == _NOTHING_RARE


def _inexpressible_features(dialect: Dialect, request: Generate) -> dict[str, bool]:
    """The features that the protocol cannot express -> whether the request asks for them."""
    chat = is_chat_call(request)
    return {
        # A chat has one conversation.
        "several_prompts": chat and len(request.prompts) > 1,
        "token_prompts": chat and isinstance(request.prompts[0], TokensPrompt),
        "tools": not chat
        and bool(request.tools)
        and (request.tool_choice is None or request.tool_choice.mode != "none"),
        # In a stream it is unknown where the echoed prompt ends.
        "prompt_logprobs": request.prompt_logprobs and (chat or request.stream),
        "suffix": chat and bool(request.suffix),
        # Neither chats nor streams of the protocol have it.
        "best_of": (request.best_of or 1) > request.n
        and (chat or request.stream)
        and not same_dialect(dialect, request),
        # No field of OpenAI's takes a regular expression; vLLM's and TGI's have different names.
        "grammar": request.grammar is not None
        and request.grammar.kind in ("regex", "ebnf")
        and not same_dialect(dialect, request),
        "template_options": _uses_template(dialect, request.prompts[0]) and not same_dialect(dialect, request),
        "watermark": request.sampling.watermark,
        "lora_adapters": request.lora_adapter is not None,
    }


def _uses_template(dialect: Dialect, prompt: Prompt) -> bool:
    """Whether a chat has options for the template that a remote of this dialect would not get."""
    if not isinstance(prompt, ChatPrompt):
        return False
    needed = {*_template_fields(prompt), *(("chat_template_kwargs",) if prompt.template.variables else ())}
    return not needed.issubset(dialect.remote.remote_fields)


def _template_fields(prompt: Prompt) -> dict[str, bool]:
    """Where a chat's text ends, if not where an answer begins: vLLM's fields."""
    options = prompt.template if isinstance(prompt, ChatPrompt) else _USUAL_TEMPLATE
    if options.continue_final_message:
        return {"add_generation_prompt": False, "continue_final_message": True}
    return {} if options.add_generation_prompt else {"add_generation_prompt": False}


def _relayed(dialect: Dialect, request: Generate, body: bytes, named: dict[str, Any]) -> bytes:
    """The client's own body, with the remote's name of the model."""
    fields: dict[str, Any] = raw_fields(body)
    # Databricks' path names the model; a name in the body would be the endpoint's here, unknown to the remote.
    if "model" not in named:
        fields.pop("model", None)
    fields |= named
    # The server codec writes these parts of the answer itself.
    if request.echo and not asks_echo(request):
        fields.pop("echo", None)
    if request.answer_suffix:
        fields.pop("suffix", None)
    # A dialect's default (`stream_default`) may differ from the remote's: what was decided here is stated.
    if request.stream != (bytes(fields.get("stream", b"null")) == b"true"):
        fields["stream"] = request.stream
    if request.stream and dialect.remote.ask_usage and not request.stream_usage:
        # The client's other options stay.
        options = msgspec.json.decode(fields.get("stream_options", b"null")) or {}
        fields["stream_options"] = options | {"include_usage": True}
    return msgspec.json.encode(fields)


def asks_echo(request: Generate) -> bool:
    """Whether the remote must echo the prompt: for its log-probabilities, or for the text of token ids."""
    known = all(isinstance(prompt, TextPrompt) for prompt in request.prompts)
    return request.prompt_logprobs or (request.echo and not known)


def _prompt(request: Generate) -> dict[str, Any]:
    first = request.prompts[0]
    if isinstance(first, ChatPrompt):
        return {"messages": write_messages(first.messages)}
    if is_chat_call(request) and isinstance(first, TextPrompt):
        text = {"type": "text", "text": first.text}
        content = [*map(write_part, first.images), text] if first.images else first.text
        return {"messages": [{"role": "user", "content": content}]}
    prompts = [_raw_prompt(prompt) for prompt in request.prompts]
    return {"prompt": prompts[0] if len(prompts) == 1 else prompts}


def _raw_prompt(prompt: Prompt) -> str | tuple[int, ...]:
    if isinstance(prompt, ChatPrompt):
        raise inexpressible("chat")
    if isinstance(prompt, TextPrompt):
        if prompt.images:
            raise inexpressible("images")
        return prompt.text
    return prompt.ids


def _fields(dialect: Dialect, request: Generate) -> dict[str, Any]:
    """All fields but the prompt and the model. A completion's limit is always sent: the default is 16 tokens."""
    fields = {
        **_sampling(dialect, request.sampling),
        **_stopping(dialect, request),
        **(_chat_fields(request) if is_chat_call(request) else _completion_fields(request)),
        "n": request.n if request.n > 1 else None,
        "response_format": _response_format(request.grammar),
        "truncate_prompt_tokens": request.truncate_prompt_tokens,
        "stream": request.stream or None,
        "stream_options": {"include_usage": True} if request.stream and dialect.remote.ask_usage else None,
        **_hints(dialect, request),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return given if is_chat_call(request) else _with_limit(dialect, given)


def _plain_fields(dialect: Dialect, request: Generate) -> dict[str, Any]:
    """What `_fields` returns for a plain request."""
    sampling, stopping, is_chat = request.sampling, request.stopping, is_chat_call(request)
    fields = {
        "temperature": dialect.remote.greedy_temperature if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": None if sampling.seed is None else _seed(dialect, sampling),
        dialect.remote.max_tokens_field if is_chat else "max_tokens": stopping.max_new_tokens,
        "stop": stopping.stop or None,
        "include_stop_str_in_output": stopping.shows_stop or None,
        "stream": request.stream or None,
        "stream_options": {"include_usage": True} if request.stream and dialect.remote.ask_usage else None,
        "user": short_user(request.user) if "user" in dialect.remote.remote_fields else None,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return given if is_chat else _with_limit(dialect, given)


def _with_limit(dialect: Dialect, given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a completion, with its limit: an explicit null is not the default of 16.

    None in the IR means all that the context leaves.
    """
    return {"max_tokens": None} | given if "max_tokens" in dialect.remote.remote_fields else given


def short_user(user: str | None) -> str | None:
    """A user of another protocol's client, who may have a longer name than OpenAI takes: that name's SHA-256."""
    return sha256(user.encode()).hexdigest() if user is not None and len(user) > _LONGEST_USER else user


def _hints(dialect: Dialect, request: Generate) -> dict[str, Any]:
    """The fields that no answer depends on, without those that the remote would refuse."""
    hints = request.hints | {"user": short_user(request.user)}
    return {name: hint for name, hint in hints.items() if name in _HINTS and name in dialect.remote.remote_fields}


def _sampling(dialect: Dialect, sampling: Sampling) -> dict[str, Any]:
    """The sampling fields. The API samples by default, so that greedy decoding is a temperature."""
    return {
        "temperature": dialect.remote.greedy_temperature if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "bad_words": sampling.bad_words or None,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias} or None,
        "seed": _seed(dialect, sampling),
    }


def _seed(dialect: Dialect, sampling: Sampling) -> int | None:
    # A seed of ours that the remote cannot take is dropped; a client's own seed would be refused.
    seed = None if sampling.seed_drawn and "seed" not in dialect.remote.remote_fields else sampling.seed
    if seed is not None and dialect.remote.signed_seed and seed >= 2**63:
        # The same 64 bits as a signed number.
        seed -= 2**64
    return seed


def _stopping(dialect: Dialect, request: Generate) -> dict[str, Any]:
    stopping = request.stopping
    return {
        dialect.remote.max_tokens_field if is_chat_call(request) else "max_tokens": stopping.max_new_tokens,
        "min_tokens": stopping.min_new_tokens or None,
        "stop": stopping.stop or None,
        "stop_token_ids": stopping.stop_token_ids or None,
        "ignore_eos": stopping.ignore_eos or None,
        "include_stop_str_in_output": stopping.shows_stop or None,
    }


def _chat_fields(request: Generate) -> dict[str, Any]:
    return {
        "logprobs": request.logprobs or None,
        "top_logprobs": request.top_logprobs or None,
        "tools": [_tool(tool) for tool in request.tools] or None,
        # OpenAI refuses both without tools.
        "tool_choice": _tool_choice(request.tool_choice) if request.tools else None,
        "parallel_tool_calls": request.parallel_tool_calls if request.tools else None,
        **_template_fields(request.prompts[0]),
    }


def _completion_fields(request: Generate) -> dict[str, Any]:
    return {
        # In completions `logprobs` is the number of alternatives, and 0 means the token's own alone.
        "logprobs": request.top_logprobs if request.logprobs or request.prompt_logprobs else None,
        "echo": asks_echo(request) or None,
        "suffix": request.suffix,
        "best_of": request.best_of,
    }


def _tool(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}


def _tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None or choice.mode in ("none", "auto", "required"):
        return None if choice is None else choice.mode
    tools = [{"type": "function", "function": {"name": name}} for name in choice.names]
    if choice.mode == "named":
        return tools[0]
    mode = "required" if choice.required else "auto"
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _response_format(grammar: Grammar | None) -> dict[str, Any] | None:
    if grammar is None:
        return None
    if grammar.kind == "json_object":
        return {"type": "json_object"}
    strict = {} if grammar.strict is None else {"strict": grammar.strict}
    # OpenAI requires a name; grammars of other protocols have none.
    schema = {"name": grammar.name or "answer", "schema": grammar.value} | strict
    return {"type": "json_schema", "json_schema": schema}
