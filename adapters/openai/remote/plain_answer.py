"""Whole answers of one text, read in one step.

What is checked here is what `read_answer` would refuse, or count otherwise. Everything else is left to it.
"""

from __future__ import annotations

from adapters.openai.dialects import Dialect
from adapters.openai.remote.decode_answer import decode_answer, read_finish, read_usage
from adapters.openai.remote.encode_request import relays_answer
from schemas.completion import Choice, Completion
from schemas.errors import GatewayError
from schemas.ir import Generate


def read_plain_answer(dialect: Dialect, request: Generate, body: bytes) -> Completion | None:
    """The answer to a request for one text; None: `read_answer` is to read it."""
    try:
        answer = decode_answer(body)
        choices, usage = answer.choices, answer.usage
        if choices is None or len(choices) != 1 or usage is None or usage.completion_tokens is None:
            return None
        (choice,) = choices
        if choice.index != 0 or choice.logprobs is not None:
            return None
        message, reasoning, refusal = choice.message, "", ""
        if message is not None:
            text = message.content
            if type(text) is not str or message.tool_calls or message.extra_content is not None or choice.text:
                return None
            reasoning = message.reasoning_content or message.reasoning or ""
            refusal = message.refusal or ""
        elif (text := choice.text) is None or choice.delta is not None:
            return None
        reason, stop = read_finish(dialect, choice)
    except GatewayError:
        return None
    read = Choice(0, reason, text, reasoning=reasoning, refusal=refusal, stop=stop)
    relayed = body if relays_answer(dialect, request) else None
    return Completion(answer.model or request.model, (read,), read_usage(usage, 0), relayed=relayed)
