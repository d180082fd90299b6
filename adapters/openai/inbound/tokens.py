"""vLLM's `/tokenize` and `/detokenize`: bodies decoded to the IR, answers encoded."""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Call, Reply
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import missing
from adapters.openai.inbound.decode import read_fields, read_model
from adapters.openai.inbound.messages import read_messages
from adapters.openai.inbound.parts import unread_parts
from adapters.openai.inbound.tools import read_tools, unread_tools
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import Origin, TextPrompt, Tokenize, Tokens, TokensPrompt
from schemas.openai.tokens import DetokenizedText, DetokenizeRequest, TokenizeRequest, TokenList


def read_tokenize(dialect: Dialect, fields: Any, origin: Origin, call: Call) -> Tokenize:
    """The request of `POST /tokenize` with a `prompt` or `messages`.

    Raises:
        schemas.errors.RequestError: the body cannot be read, or asks for what no model here does.
    """
    given, extra = read_fields(dialect, fields, TokenizeRequest)
    model = read_model(dialect, given.model or "", call)
    # Neither changes the tokens of a text.
    if given.messages is not None and (given.add_generation_prompt is False or given.continue_final_message):
        raise UnsupportedFeature(
            "Conversations are tokenized as they are for an answer, with the beginning of the assistant's turn.",
            feature="add_generation_prompt",
            param="continue_final_message" if given.continue_final_message else "add_generation_prompt",
        )
    card = call.catalog.find(model)
    return Tokenize(
        id=call.id,
        model=model,
        prompt=read_messages(dialect, given.messages) if given.messages is not None else TextPrompt(given.prompt or ""),
        tools=read_tools(dialect, given.tools or ()),
        add_special_tokens=given.add_special_tokens is not False,
        context_length=None if card is None else card.context_length,
        unread=(*unread_tools(given.tools or ()), *unread_parts(given.messages or ())),
        unknown=extra.paths,
        origin=origin,
    )


def read_detokenize(dialect: Dialect, fields: Any, origin: Origin, call: Call) -> Tokenize:
    """The request of `POST /detokenize`: a tokenization whose prompt are the tokens, and whose text is the answer.

    Raises:
        schemas.errors.RequestError: the body cannot be read, or an id is not in the vocabulary.
    """
    given, extra = read_fields(dialect, fields, DetokenizeRequest)
    if not given.tokens:
        raise missing("tokens")
    model = read_model(dialect, given.model or "", call)
    card = call.catalog.find(model)
    size = 2**31 if card is None or card.vocab_size is None else card.vocab_size
    if not 0 <= min(given.tokens) <= max(given.tokens) < size:
        raise InvalidRequest(f"Token ids in tokens must be from 0 to {size - 1}.", param="tokens")
    prompt = TokensPrompt(given.tokens)
    return Tokenize(id=call.id, model=model, prompt=prompt, unknown=extra.paths, origin=origin)


def encode_tokens(request: Tokenize, answer: Tokens) -> Reply:
    """The answer of either route."""
    assert request.origin is not None
    if request.origin.operation == "detokenize":
        return Reply(msgspec.json.encode(DetokenizedText(answer.text)))
    ids = tuple(span.id for span in answer.spans)
    with_texts = msgspec.json.decode(request.origin.body, type=TokenizeRequest).return_token_strs
    texts = tuple(span.text for span in answer.spans) if with_texts else None
    return Reply(msgspec.json.encode(TokenList(len(ids), request.context_length, ids, texts)))
