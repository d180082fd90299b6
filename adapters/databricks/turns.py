"""The order of roles that Databricks requires: "alternate between user and assistant, ending with a user message"."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.openai.inbound.checks import refused
from schemas.ir import Message
from schemas.openai.requests import ChatMessage

_MAY_FOLLOW = {
    "user": ("", "system", "assistant", "tool"),
    "assistant": ("user", "tool"),
    # "tool" after "tool": parallel calls have several results.
    "tool": ("assistant", "tool"),
}
"""A role -> the roles that it may follow; "" is the beginning of the conversation."""


def check_turns(messages: Sequence[ChatMessage | Message]) -> None:
    """Refuse messages whose roles are out of order.

    Raises:
        schemas.errors.InvalidRequest: `param` names the message.
    """
    previous = ""
    for place, message in enumerate(messages):
        param = f"messages[{place}]"
        _check_fields(message, param)
        if message.role == "system" and place > 0:
            raise refused(param, f"Invalid '{param}': a system message may only be the first message, and only once.")
        # The default is for "system", which only the beginning may precede.
        allowed = _MAY_FOLLOW.get(message.role, ("",))
        if previous not in allowed:
            fault = (
                f"a message of role '{message.role}' cannot follow one of role '{previous}'"
                if previous
                else f"a conversation cannot begin with a message of role '{message.role}'"
            )
            raise refused(param, f"Invalid '{param}': {fault}; user and assistant messages must alternate.")
        previous = message.role
    if previous not in ("user", "tool"):
        raise refused("messages", "Invalid 'messages': the last message must be a user message.")


def _check_fields(message: ChatMessage | Message, param: str) -> None:
    if message.tool_calls and message.role != "assistant":
        raise refused(f"{param}.tool_calls", f"Invalid '{param}.tool_calls': only for messages of role 'assistant'.")
    if message.tool_call_id and message.role != "tool":
        raise refused(f"{param}.tool_call_id", f"Invalid '{param}.tool_call_id': only for messages of role 'tool'.")
