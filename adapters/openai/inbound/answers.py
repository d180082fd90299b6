"""Whole answers as the JSON of `/v1/chat/completions`, `/v1/completions` and `/v1/embeddings`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from adapters.base import Reply
from adapters.calls import written_signature
from adapters.fold import visible_text
from adapters.openai.dialects import Dialect
from adapters.openai.inbound.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from adapters.openai.vectors import encode_vector
from schemas.completion import Choice, Completion
from schemas.ir import ChatPrompt, Embed, Embeddings, FinishReason, Generate, TextPrompt, Token, ToolCall, Usage
from schemas.openai import answers as wire
from schemas.openai import requests

# One encoder for the process: it keeps nothing between calls.
_json = msgspec.json.Encoder().encode
Prompts = tuple[tuple[Token, ...], ...]
"""The tokens of each prompt, as in `schemas.ir.Started.prompts`."""


def encode_answer(dialect: Dialect, request: Generate, answer: Completion, created: int) -> Reply:
    """The whole answer to `request`; `created` is Unix time in seconds."""
    if answer.relayed is not None:
        return Reply(answer.relayed)
    shape = _chat if isinstance(request.prompts[0], ChatPrompt) else _completion
    return Reply(_json(shape(dialect, request, answer, created)))


def encode_embeddings(request: Embed, answer: Embeddings, id: str | UnsetType = UNSET) -> Reply:
    """The answer to a request for embeddings; `id` is a field of Databricks'."""
    if answer.relayed is not None:
        return Reply(answer.relayed)
    packed = request.encoding == "base64"
    data = tuple(
        wire.Embedding("embedding", index, encode_vector(vector) if packed else vector)
        for index, vector in enumerate(answer.vectors)
    )
    # Embeddings have no completion tokens: the total is the prompt's.
    usage = wire.EmbeddingUsage(answer.usage.prompt_tokens, answer.usage.prompt_tokens)
    return Reply(_json(wire.EmbeddingList(id=id, data=data, model=answer.model or request.model, usage=usage)))


def wire_usage(dialect: Dialect, usage: Usage) -> wire.Usage:
    """Token counts."""
    if not dialect.answers.usage_details:
        return wire.Usage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    cached, reasoning = usage.cached_tokens, usage.reasoning_tokens
    return wire.Usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.total_tokens,
        UNSET if cached is None else wire.PromptTokensDetails(cached),
        UNSET if reasoning is None else wire.CompletionTokensDetails(reasoning),
    )


def echoed(request: Generate, choice: int, prompts: Prompts) -> str:
    """The prompt's text, which `echo` puts before the choice; "" without `echo`.

    The text of a prompt of token ids is that of the tokens that the backend returned.
    """
    if not request.echo:
        return ""
    place = choice // request.n
    prompt = request.prompts[place]
    if isinstance(prompt, TextPrompt):
        return prompt.text
    tokens = prompts[place] if place < len(prompts) else ()
    return "".join(token.text for token in tokens if not token.special)


def prompt_tokens(request: Generate, choice: int, prompts: Prompts) -> tuple[Token, ...]:
    """The tokens of an echoed prompt, if their log-probabilities are requested."""
    place = choice // request.n
    return prompts[place] if request.echo and request.prompt_logprobs and place < len(prompts) else ()


def prompt_ids(request: Generate, choice: int, prompts: Prompts) -> tuple[int, ...] | UnsetType:
    """The ids of a choice's prompt, if they are asked for (vLLM's `return_token_ids`)."""
    place = choice // request.n
    if not request.returns_ids or place >= len(prompts):
        return UNSET
    return tuple(token.id for token in prompts[place] if token.id is not None)


def prompt_scores(request: Generate, choice: int, prompts: Prompts) -> wire.PromptLogprobs | UnsetType:
    """vLLM's `prompt_logprobs` of a choice's prompt, if they are asked for."""
    place = choice // request.n
    if request.prompt_scores is None or place >= len(prompts):
        return UNSET
    return prompt_logprobs(prompts[place], request.prompt_scores)


def _chat(dialect: Dialect, request: Generate, answer: Completion, created: int) -> wire.ChatCompletion:
    return wire.ChatCompletion(
        id=f"{dialect.answers.id_prefix}{request.id}",
        created=created,
        model=answer.model or request.model,
        choices=tuple(_chat_choice(dialect, request, choice) for choice in answer.choices),
        usage=wire_usage(dialect, answer.usage),
        system_fingerprint=dialect.answers.fingerprint or UNSET,
        prompt_logprobs=prompt_scores(request, 0, answer.prompts),
        prompt_token_ids=prompt_ids(request, 0, answer.prompts),
    )


def _chat_choice(dialect: Dialect, request: Generate, choice: Choice) -> wire.ChatChoice:
    logprobs = chat_logprobs(choice.tokens, request.top_logprobs) if request.logprobs else None
    # `content` is null beside tool calls, refusals and reasoning, and "" for an empty text. With log-probabilities
    # there was text, if only of tokens without visible characters.
    null_content = logprobs is None and bool(choice.tool_calls or choice.refusal or choice.reasoning)
    message = wire.AnswerMessage(
        content=choice.text or (None if null_content else ""),
        reasoning_content=choice.reasoning or UNSET,
        tool_calls=UNSET if request.legacy_functions else tuple(map(_tool_call, choice.tool_calls)) or UNSET,
        function_call=_function_call(choice.tool_calls) if request.legacy_functions else UNSET,
        refusal=choice.refusal or (None if dialect.answers.refusal else UNSET),
        annotations=() if dialect.answers.annotations else UNSET,
    )
    finish = chat_finish(dialect, request, choice.reason)
    shown = logprobs if dialect.answers.logprobs else UNSET
    return wire.ChatChoice(choice.index, message, shown, finish, choice.ids if request.returns_ids else UNSET)


def chat_finish(dialect: Dialect, request: Generate, reason: FinishReason) -> str:
    """The finish reason of a chat; "function_call" for a call in the deprecated form."""
    if request.legacy_functions and reason is FinishReason.TOOL_CALL:
        return "function_call"
    return dialect.wording.finish[reason]


def _tool_call(call: ToolCall) -> requests.ToolCall:
    function = requests.FunctionCall(call.name, call.arguments)
    return requests.ToolCall(id=call.id, function=function, extra_content=written_signature(call.signature))


def _function_call(calls: tuple[ToolCall, ...]) -> requests.FunctionCall | UnsetType:
    """The call in the deprecated form, which has room for one: parallel calls were not asked for."""
    return requests.FunctionCall(calls[0].name, calls[0].arguments) if calls else UNSET


def _completion(dialect: Dialect, request: Generate, answer: Completion, created: int) -> wire.Completion:
    return wire.Completion(
        id=f"{dialect.answers.completion_id_prefix}{request.id}",
        created=created,
        model=answer.model or request.model,
        choices=tuple(_completion_choice(dialect, request, answer, choice) for choice in answer.choices),
        usage=wire_usage(dialect, answer.usage),
        system_fingerprint=dialect.answers.fingerprint or UNSET,
    )


def _completion_choice(
    dialect: Dialect, request: Generate, answer: Completion, choice: Choice
) -> wire.CompletionChoice:
    echo, tokens = echoed(request, choice.index, answer.prompts), choice.tokens
    offset = len(echo)
    if prompt := prompt_tokens(request, choice.index, answer.prompts):
        # `text_offset` counts from the beginning of the choice's text, which an echoed prompt is part of.
        tokens, offset = prompt + tokens, 0
    logprobs = completion_logprobs(tokens, request.top_logprobs, offset) if request.logprobs else None
    return wire.CompletionChoice(
        echo + visible_text(choice) + request.answer_suffix,
        choice.index,
        logprobs if dialect.answers.logprobs else UNSET,
        completion_finish(dialect, choice.reason),
        choice.ids if request.returns_ids else UNSET,
        prompt_scores(request, choice.index, answer.prompts),
        prompt_ids(request, choice.index, answer.prompts),
    )


def completion_finish(dialect: Dialect, reason: FinishReason) -> str:
    """The finish reason of a completion.

    Completions cannot express reasoning and tool calls, which some models write before or instead of text: both are
    omitted, and the end of a tool call counts as a normal end.
    """
    return dialect.wording.finish[FinishReason.EOS if reason is FinishReason.TOOL_CALL else reason]
