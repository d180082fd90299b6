"""A model's chat template: what it supports, and the text that it makes of a chat. All rendering goes through here.

Strategy: a template comes with the model and is code that anyone may have written. The sandbox of Jinja keeps it from
reaching objects of the interpreter, but bounds neither time nor memory: `{{ 'a' * 300000000 }}` is a template, and so
are two nested ranges. Limits inside the interpreter cannot cover every operation (a power of integers, the width in a
format, the argument of a filter), so the template runs in a child process, which the kernel limits. A child that is
killed is started again for the next chat. Short chats have a child of their own, so that they do not wait for long
ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from backends.chat_template.child import BEYOND_LIMITS, RENDERED
from backends.chat_template.limits import Limits
from backends.chat_template.process import TemplateProcess, ask_once
from schemas.errors import InvalidRequest
from schemas.prompts import TemplateOptions

log = structlog.get_logger()

_LONG_CHAT = 16 * 1024  # bytes of JSON from which on a chat goes to the child for long ones
_PROBE = "a probe of the template"
_PROBE_SYSTEM = "a probe of its system message"
_PROBE_ID, _PROBE_NAME, _PROBE_KEY, _PROBE_VALUE = "call_0123456789abcdef01234567", "probe_name", "probe_key", "probe_v"
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _PROBE_NAME,
        "description": _PROBE,
        "parameters": {"type": "object", "properties": {_PROBE_KEY: {"type": "string", "description": _PROBE}}},
    },
}
_SHORT_ID = 9
_USUAL = TemplateOptions()


class CallStyle(NamedTuple):
    """What a template expects of an assistant's message with tool calls.

    Attributes:
        arguments_as_text: arguments as JSON text; most templates write JSON of an object.
        empty_content: a content, if only an empty one.
        short_ids: ids of nine characters.
    """

    arguments_as_text: bool = False
    empty_content: bool = False
    short_ids: bool = False

    def arguments(self, text: str) -> Any:
        """A call's arguments in this style; text that is not JSON stays as it is."""
        if self.arguments_as_text:
            return text
        try:
            # OpenAI's `arguments` is JSON in a string. Templates apply `tojson`, which would quote such a string once
            # more.
            return json.loads(text)
        except ValueError:
            return text

    def id(self, id: str) -> str:
        """The id of a call in this style."""
        return id[-_SHORT_ID:] if self.short_ids else id


STYLES = tuple(
    CallStyle(as_text, empty, short) for short in (False, True) for as_text in (False, True) for empty in (False, True)
)
"""The usual one first."""


class ChatTemplate:
    """The template of a model. To make one takes a child process, some tenths of a second; it blocks meanwhile.

    Args:
        source: the Jinja source, or sources by name: `default`, and `tool_use` for chats with tools.
        variables: further variables for the template: names of special tokens.
        limits: what rendering may take.

    Attributes:
        literals: the text that the template itself contains, a NUL between two pieces.
        wants_parts: whether the template ignores content that is a string: those of many multimodal models read lists
            of parts.
        knows_developer: whether the template names the role `developer`.
        knows_images: whether the template names images.
        takes_system: whether the template renders system messages.
        call_style: how the template expects tool calls in a conversation.
        variables: the variables that the template reads, ours and a client's.
    """

    def __init__(
        self, source: str | Mapping[str, str], variables: Mapping[str, Any] | None = None, limits: Limits | None = None
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source)
        self._limits = limits or Limits()
        setup = _json({"sources": sources, "variables": dict(variables or {})})
        as_text, as_parts = _PROBE, [{"type": "text", "text": _PROBE}]
        chats = [[{"role": "user", "content": content}] for content in (as_text, as_parts)]
        chats += [
            [{"role": "system", "content": _probed(content, _PROBE_SYSTEM)}, *chats[place]]
            for place, content in enumerate((as_text, as_parts))
        ]
        calls = any("tool_calls" in text for text in sources.values())
        probes = [self._request(chat, None) for chat in chats]
        probes += [self._request(called(style), [PROBE_TOOL]) for style in STYLES] if calls else []
        # A reply is missing if the child was killed over its request; the template is used nevertheless, since it may
        # render other chats.
        replies = [*ask_once([setup, *probes], self._limits), *[(BEYOND_LIMITS, b"")] * (len(probes) + 1)]
        (status, about), *rendered = replies[: len(probes) + 1]
        if status != RENDERED:
            log.warning("chat_template.rejected", why=_reason(status, about))
        known: dict[str, Any] = json.loads(about) if status == RENDERED else {"literals": "", "reads": ()}
        self.literals: str = known["literals"]
        self.variables = frozenset(known["reads"])
        works = [status == RENDERED and _PROBE.encode() in text for status, text in rendered[:2]]
        self.wants_parts = works == [False, True]
        self.takes_system = any(status == RENDERED and _PROBE_SYSTEM.encode() in text for status, text in rendered[2:4])
        styles = zip(STYLES, rendered[4:], strict=False)
        self.call_style = next((style for style, reply in styles if renders_call(*reply)), STYLES[0])
        # Searched in the source: a template that never names the role cannot render it.
        self.knows_developer = any("developer" in text for text in sources.values())
        self.knows_images = any("image" in text for text in sources.values())
        self._short, self._long = (TemplateProcess(setup, self._limits) for _ in range(2))

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: TemplateOptions = _USUAL,
    ) -> str:
        """The text of a chat, by default up to where the model's answer begins.

        Args:
            messages: as OpenAI's chat completions have them; absent fields are left out, not None.
            tools: functions, likewise.
            options: where the text ends, and further variables for the template.

        Raises:
            schemas.errors.InvalidRequest: the template rejects the messages, or takes too much for them.
        """
        if not messages:
            raise InvalidRequest("A chat needs at least one message.", param="messages")
        # None, not an empty list: some templates only test `tools is not none`.
        request = self._request(list(messages), list(tools) or None, options)
        process = self._short if len(request) < _LONG_CHAT else self._long
        status, text = await process.ask(request)
        if status != RENDERED:
            # Templates call `raise_exception`, for example if roles do not alternate: the client's error.
            why = _reason(status, text)
            raise InvalidRequest(f"The model's chat template rejects the messages: {why}", param="messages")
        whole = text.decode(errors="replace")
        return _cut(whole, messages[-1]) if options.continue_final_message else whole

    def close(self) -> None:
        """Kill the child processes. Idempotent; they are started again if a chat is rendered."""
        self._short.close()
        self._long.close()

    def _request(self, messages: list[Any], tools: list[Any] | None, options: TemplateOptions = _USUAL) -> bytes:
        return _json(
            {
                "messages": messages,
                "tools": tools,
                "opens_answer": options.add_generation_prompt and not options.continue_final_message,
                "variables": options.variables,
                "longest": self._limits.output_bytes,
            }
        )


def _cut(text: str, message: Mapping[str, Any]) -> str:
    """The text of a chat up to the end of its last message, without what closes the message.

    Raises:
        schemas.errors.InvalidRequest: the message has no text, or the template changed it.
    """
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content[-1:])
    # Templates strip messages; where they do not, the white space at the end is part of what is continued.
    for ending in (content, content.strip()):
        place = text.rfind(ending) if ending else -1
        if place >= 0:
            return text[: place + len(ending)]
    raise InvalidRequest(
        "The last message cannot be continued: the chat template does not render it.", param="messages"
    )


def _probed(content: Any, text: str) -> Any:
    """A content with another text."""
    return text if isinstance(content, str) else [{"type": "text", "text": text}]


def called(style: CallStyle) -> list[dict[str, Any]]:
    """A chat with a call in a style."""
    id = style.id(_PROBE_ID)
    function = {"name": _PROBE_NAME, "arguments": style.arguments(json.dumps({_PROBE_KEY: _PROBE_VALUE}))}
    turn = {"role": "assistant", "tool_calls": [{"id": id, "type": "function", "function": function}]}
    return [
        {"role": "user", "content": _PROBE},
        turn | ({"content": ""} if style.empty_content else {}),
        {"role": "tool", "content": _PROBE, "tool_call_id": id, "name": _PROBE_NAME},
    ]


def renders_call(status: int, text: bytes) -> bool:
    """Whether a reply has the call of `called`, with its arguments as JSON or as values."""
    whole = text.decode(errors="replace")
    # Between single quotes the key is that of a dict in Python's form: the template expects text.
    return status == RENDERED and _PROBE_VALUE in whole and f"'{_PROBE_KEY}'" not in whole


def _json(value: Any) -> bytes:
    # Not msgspec's: arguments of calls may hold what is no JSON (NaN, lone surrogates), and come back as they are.
    return json.dumps(value, default=str).encode()


def _reason(status: int, text: bytes) -> str:
    return "they take more time or memory than they may." if status == BEYOND_LIMITS else text.decode(errors="replace")
