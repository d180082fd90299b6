"""Whole answers of one text that clients of the dialect get as they came: the end and the usage alone are read.

What is checked here is what `decode_answer` would refuse, or count otherwise. Everything else is left to it.
"""

from __future__ import annotations

from adapters.openai.dialects import Dialect
from adapters.openai.remote.decode_answer import decode_answer, read_finish, read_usage
from adapters.optional import RelayedWhole
from schemas.errors import GatewayError


def read_plain_answer(dialect: Dialect, body: bytes) -> RelayedWhole | None:
    """What is counted of an answer; None: `read_answer` is to read it."""
    try:
        answer = decode_answer(body)
        choices, usage = answer.choices, answer.usage
        if choices is None or len(choices) != 1 or usage is None or usage.completion_tokens is None:
            return None
        (choice,) = choices
        message = choice.message
        if choice.index != 0 or choice.logprobs is not None or message is None or type(message.content) is not str:
            return None
        if message.tool_calls or message.extra_content is not None:
            return None
        return RelayedWhole(body, read_finish(dialect, choice)[0], read_usage(usage, 0))
    except GatewayError:
        return None
