"""Fields that constrain the text, vLLM's and SGLang's among them, and those that only servers of the dialect honour."""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Any

from adapters.body import convert, parse
from adapters.openai.inbound.checks import refused
from adapters.openai.inbound.tools import read_response_format
from adapters.openai.words import WORDS, unknown_words
from schemas.errors import InvalidRequest, MalformedBody
from schemas.ir import Grammar, TemplateOptions
from schemas.openai import requests as wire
from schemas.origin import Unread

_MAX_PROMPT_LOGPROBS = 20
_OWN_FIELDS: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "allowed_token_ids": ([],),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_hidden_states": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "separate_reasoning": (True,),
    "include_reasoning": (True,),
    "lora_path": (),
    "add_special_tokens": (),  # see `own_fields`
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "structural_tag": (),
}
"""Fields that change the answer and that only a server of the client's dialect may have -> values without effect."""
_CHAT_FIELDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "audio": ((), "The 'audio' parameter is not supported: answers are text."),
    "modalities": ((("text",),), "Only the modality 'text' is supported."),  # SDKs send the default, too
    "web_search_options": ((), "The 'web_search_options' parameter is not supported."),
    "moderation": ((), "The 'moderation' parameter is not supported."),
    "chat_template": ((), "The 'chat_template' parameter is not supported: a model's own template is used."),
    "echo": ((False,), "The 'echo' parameter is not supported in chats."),
}
"""The same of chats, OpenAI's own among them -> values without effect, and the refusal."""
_OWN = attrgetter(*_OWN_FIELDS)
_NO_OWN = (None,) * len(_OWN_FIELDS)
_CHAT_OWN = attrgetter(*_CHAT_FIELDS, "reasoning_effort", "verbosity", "service_tier", "prompt_cache_retention")
_NO_CHAT_OWN = (None,) * (len(_CHAT_FIELDS) + 4)
_CONSTRAINED = attrgetter(
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_json_object",
    "json_schema",
    "regex",
    "ebnf",
)
"""All fields that may hold a constraint on the text."""
_FREE = (None,) * 10


def read_grammar(given: wire.GenerationRequest) -> Grammar | None:
    """The constraint on the text, under any of its names; None is free text.

    Raises:
        schemas.errors.InvalidRequest: there are several constraints, or one is malformed; `param` names it.
    """
    if _CONSTRAINED(given) == _FREE:
        return None
    found = _given_constraints(given)
    grammar = read_response_format(given.response_format)
    if len(found) + (grammar is not None) > 1:
        raise refused(found[-1][0], f"'{found[-1][0]}' cannot be combined with another constraint on the text.")
    return _grammar(*found[0]) if found else grammar


def constraining_field(body: bytes) -> str:
    """The field of a chat or completion that constrains the text, under the name that the client used.

    Args:
        body: of a request that was decoded.
    """
    given, _ = convert(parse(body), wire.GenerationRequest)
    return next((name for name, value in _given_constraints(given)), "response_format")


def template_options(given: wire.ChatRequest) -> TemplateOptions:
    """How the chat template is to be used.

    Raises:
        schemas.errors.InvalidRequest: the text should end both within the last message and behind it.
    """
    continues = bool(given.continue_final_message)
    if continues and given.add_generation_prompt:
        message = "'continue_final_message' and 'add_generation_prompt' cannot both be true."
        raise refused("continue_final_message", message)
    opens = not continues and given.add_generation_prompt is not False
    return TemplateOptions(opens, continues, given.chat_template_kwargs or {})


def prompt_scores(given: wire.GenerationRequest) -> int | None:
    """vLLM's `prompt_logprobs`, where a native model can do it: a whole answer, and a number of alternatives."""
    asked = given.prompt_logprobs
    fits = isinstance(asked, int) and not isinstance(asked, bool) and 0 <= asked <= _MAX_PROMPT_LOGPROBS
    return asked if fits and not given.stream else None


def own_fields(given: wire.GenerationRequest) -> tuple[Unread, ...]:
    """The fields that only a server of the client's own dialect can honour."""
    values = _OWN(given)
    if values == _NO_OWN:
        return ()
    # vLLM's defaults: a text gets special tokens, the template of a chat has them.
    neutral = _OWN_FIELDS | {"add_special_tokens": (isinstance(given, wire.CompletionRequest),)}
    return tuple(
        Unread(name, name, f"The '{name}' parameter is not supported.")
        for (name, without_effect), value in zip(neutral.items(), values, strict=True)
        if value is not None and value not in without_effect
    )


def own_chat_fields(given: wire.ChatRequest) -> tuple[Unread, ...]:
    """The fields of a chat, and the words in them, that only a server of the client's own dialect can honour."""
    if _CHAT_OWN(given) == _NO_CHAT_OWN:
        return ()
    words = [(name, name, getattr(given, name)) for name in WORDS if name != "modalities"]
    words += [(f"modalities[{place}]", "modalities", word) for place, word in enumerate(given.modalities or ())]
    return unknown_words(words) + tuple(
        Unread(name, name, refusal)
        for name, (without_effect, refusal) in _CHAT_FIELDS.items()
        if (value := getattr(given, name)) is not None and value not in without_effect
    )


def _given_constraints(given: wire.GenerationRequest) -> list[tuple[str, Any]]:
    """The fields beside `response_format` that hold a constraint, and their values."""
    outputs = given.structured_outputs or wire.StructuredOutputs()
    fields = (
        ("guided_json", given.guided_json),
        ("guided_regex", given.guided_regex),
        ("guided_choice", given.guided_choice),
        ("guided_grammar", given.guided_grammar),
        ("guided_json_object", given.guided_json_object),
        ("structured_outputs.json", outputs.json),
        ("structured_outputs.regex", outputs.regex),
        ("structured_outputs.choice", outputs.choice),
        ("structured_outputs.grammar", outputs.grammar),
        ("structured_outputs.json_object", outputs.json_object),
        ("json_schema", given.json_schema),
        ("regex", given.regex),
        ("ebnf", given.ebnf),
    )
    return [(name, value) for name, value in fields if value is not None and value is not False]


def _grammar(name: str, value: Any) -> Grammar:
    if name.endswith("json_object"):
        return Grammar("json_object")
    if name.endswith("regex"):
        return Grammar("regex", value)
    if name.endswith("choice"):
        if not value:
            raise refused(name, f"'{name}' must have at least one text.")
        # A choice of texts is a regular expression of their alternatives; `escape` keeps them literal.
        return Grammar("regex", "|".join(map(re.escape, value)))
    if name.endswith(("grammar", "ebnf")):
        return Grammar("ebnf", value)
    return Grammar("json_schema", _schema(name, value))


def _schema(name: str, value: Any) -> dict[str, Any]:
    """A JSON schema, which may be given as its JSON text."""
    try:
        schema = parse(value.encode()) if isinstance(value, str) else value
    except MalformedBody:
        raise _no_schema(name) from None
    if not isinstance(schema, dict):
        raise _no_schema(name)
    return schema


def _no_schema(name: str) -> InvalidRequest:
    return refused(name, f"'{name}' must be a JSON schema.")
