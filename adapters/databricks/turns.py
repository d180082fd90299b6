"""The order of turns that Databricks insists on: "alternate between user and assistant, ending with a user message"."""

from __future__ import annotations

from adapters.openai.inbound.checks import refused
from schemas.openai.requests import ChatMessage

_BEFORE = {
    "user": ("", "system", "assistant", "tool"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}
"""Which roles a role may follow; "" is the beginning."""


def check_turns(messages: tuple[ChatMessage, ...]) -> None:
    """Refuse what is no conversation.

    Raises:
        schemas.errors.InvalidRequest: `param` names the message.
    """
    before = ""
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        _check_fields(message, where)
        if message.role == "system" and place > 0:
            raise refused(where, f"Invalid '{where}': a system message may only be the first message, and only once.")
        allowed = _BEFORE.get(message.role, ("",))
        if before not in allowed:
            said = (
                f"a message of role '{message.role}' cannot follow one of role '{before}'"
                if before
                else (f"a conversation cannot begin with a message of role '{message.role}'")
            )
            raise refused(where, f"Invalid '{where}': {said}; user and assistant messages must alternate.")
        before = message.role
    if before not in ("user", "tool"):
        raise refused("messages", "Invalid 'messages': the last message must be a user message.")


def _check_fields(message: ChatMessage, where: str) -> None:
    if message.tool_calls and message.role != "assistant":
        raise refused(f"{where}.tool_calls", f"Invalid '{where}.tool_calls': only for messages of role 'assistant'.")
    if message.tool_calls and message.content:
        raise refused(f"{where}.content", f"Invalid '{where}.content': must be empty beside 'tool_calls'.")
    if message.tool_call_id and message.role != "tool":
        raise refused(f"{where}.tool_call_id", f"Invalid '{where}.tool_call_id': only for messages of role 'tool'.")
