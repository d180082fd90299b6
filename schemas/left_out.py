"""What of a request does not reach whoever answers it: named in the response header `x-interlingua-ignored`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from schemas.ir import ChatPrompt, Embed, Generate, Message, Tokenize
from schemas.prompts import ImagePart

_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "reasoning_effort": (),
    "thinking": (),
    "verbosity": (),
    "service_tier": ("auto", "default"),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "extra_params": (),
}
"""The hints that ask for something, with the values that do not. All others are labels: who asks, and what for."""

NAME = "messages[].name"
STRICT = "tools[].strict"
DETAIL = "messages[].content[].image_url.detail"
BUDGET = "thinking.budget_tokens"
SIGNATURE = "messages[].tool_calls[].extra_content"
PLACES = (NAME, STRICT, DETAIL, SIGNATURE)


def left_out(request: Generate | Embed | Tokenize, sent: Collection[str] = ()) -> tuple[str, ...]:
    """The places of what a request asks for and its server is not sent, where its body is written anew.

    Args:
        request: the request.
        sent: the hints, and those of `PLACES` and `BUDGET`, that the protocol has a form for.
    """
    if isinstance(request, Embed):
        return request.foreign_fields
    hints = _left_out_hints(request.hints, sent) if request.hints else []
    if isinstance(request, Tokenize):
        return (*request.unknown, *hints)
    places: set[str] = set()
    if request.tools and any(tool.strict for tool in request.tools):
        places.add(STRICT)
    for prompt in request.prompts:
        if isinstance(prompt, ChatPrompt):
            for message in prompt.messages:
                # Nearly all messages are a role and a text.
                if message.name or message.tool_calls or not isinstance(message.content, str):
                    _find_places(message, places)
    foreign = request.foreign_fields if request.unread or request.unknown else ()
    unsent = [place for place in PLACES if place in places and place not in sent] if places else []
    return (*foreign, *hints, *unsent)


def _left_out_hints(hints: Mapping[str, Any], sent: Collection[str]) -> list[str]:
    """The hints that ask for something and are not sent."""
    found = [
        name
        for name, defaults in _DEFAULTS.items()
        if name not in sent and (value := hints.get(name)) is not None and value not in defaults
    ]
    thinking = hints.get("thinking")
    if "thinking" in sent and BUDGET not in sent and isinstance(thinking, Mapping) and thinking.get("budget_tokens"):
        found.append(BUDGET)
    return found


def _find_places(message: Message, found: set[str]) -> None:
    """Add the places of what a message asks for that not all servers take."""
    if message.name and message.role != "tool":
        found.add(NAME)
    if isinstance(message.content, tuple) and _has_detail(message):
        found.add(DETAIL)
    if message.tool_calls and any(call.signature for call in message.tool_calls):
        found.add(SIGNATURE)


def _has_detail(message: Message) -> bool:
    content = message.content
    # "auto" is the default of the clients that write one.
    return isinstance(content, tuple) and any(
        isinstance(part, ImagePart) and part.detail not in (None, "auto") for part in content
    )
