"""Chats as text: messages in the form that chat templates expect, and templates rendered without transformers.

`ChatTemplate.render` is the one place where a template runs here: in Jinja's sandbox, with what transformers offers to
templates (the filter `tojson`, `raise_exception`, `strftime_now`, `break` and `continue`, the tag `generation`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, ImagePart, Message, TextPart, TextPrompt, Tool, ToolCall

_CONTROL_TOKEN = re.compile(r"<\|[^<>|\s]+\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")
"""The names of control tokens in a template's source, for templates that come without their tokenizer."""
_PROBE = "a probe of the template"


class ChatTemplate:
    """One chat template.

    Args:
        source: the template, in Jinja.
        special_tokens: `bos_token`, `eos_token`, …, as the template is to write them.
        control_tokens: the names of the control tokens, which no message may contain; by default those in the source.

    Raises:
        ValueError: the source is no template.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, control_tokens: Collection[str] = ()
    ) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        names = control_tokens or _CONTROL_TOKEN.findall(source)
        self._control_tokens = re.compile("|".join(map(re.escape, names)) or "(?!)")  # `(?!)` never matches
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from None
        self._developer = "developer" in source
        self._parts = not self._renders(_PROBE) and self._renders([{"type": "text", "text": _PROBE}])

    @property
    def takes_images(self) -> bool:
        """Whether the template has a placeholder for images."""
        return "image" in self.source

    def render(self, prompt: ChatPrompt, tools: tuple[Tool, ...] = ()) -> TextPrompt:
        """The text of a chat, up to where the answer begins, with its images beside it.

        Raises:
            schemas.errors.InvalidRequest: the template rejects the messages, or they name a control token.
            schemas.errors.UnsupportedFeature: there are images, and the template has no place for them.
        """
        images = tuple(
            part
            for message in prompt.messages
            if isinstance(message.content, tuple)
            for part in message.content
            if isinstance(part, ImagePart)
        )
        if images and not self.takes_images:
            raise UnsupportedFeature("The model's chat template has no place for images.", feature="images")
        turns = [turn(message, parts=self._parts, developer=self._developer) for message in prompt.messages]
        # The separator keeps two strings from forming a token's name together.
        if self._control_tokens.search("\0".join(strings_in(turns))):
            raise InvalidRequest(  # the server would read it as the token: a message could forge another role's turn
                "The messages contain the name of a control token, which the server cannot distinguish from the token.",
                param="messages",
            )
        # As transformers drops them: templates test `is defined`.
        given = [{name: value for name, value in each.items() if value is not None} for each in turns]
        for each in given:
            each.setdefault("content", None)
        try:
            text = self._render(given, list(map(function, tools)) or None)
        # Templates call `raise_exception`, for example if roles do not alternate: the client's error.
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise InvalidRequest(f"The model's chat template rejects the messages: {error}", param="messages") from None
        return TextPrompt(text, images)

    def _render(self, turns: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        return self._template.render(messages=turns, tools=tools, add_generation_prompt=True, **self._special_tokens)

    def _renders(self, content: object) -> bool:
        """Whether the template writes a content of this form. Templates fail on a form that they do not expect."""
        try:
            return _PROBE in self._render([{"role": "user", "content": content}])
        except (TemplateError, TypeError, ValueError, KeyError):
            return False


def find_source(option: str | None, tokenizer: Path | None) -> str | None:
    """The source of a chat template.

    Args:
        option: the template itself, or a file of it.
        tokenizer: a folder with a tokenizer, searched if there is no `option`.

    Raises:
        OSError: the file cannot be read.
        ValueError: a file is not of the expected form.
    """
    if option is not None:
        return option if "{%" in option or "{{" in option else Path(option).read_text()
    if tokenizer is None:
        return None
    if (file := tokenizer / "chat_template.jinja").is_file():
        return file.read_text()
    for name in ("tokenizer_config.json", "chat_template.json"):
        found = _read_json(tokenizer / name).get("chat_template")
        if isinstance(found, list):  # several named templates
            found = next((each.get("template") for each in found if each.get("name") == "default"), None)
        if isinstance(found, str):
            return found
    return None


def find_special_tokens(tokenizer: Path) -> dict[str, str]:
    """The special tokens that templates name, from a folder with a tokenizer."""
    config = _read_json(tokenizer / "special_tokens_map.json") | _read_json(tokenizer / "tokenizer_config.json")
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            tokens[name] = token
    return tokens


# --- the form of messages that templates expect -------------------------------------------------------------------


def turn(message: Message, *, parts: bool, developer: bool) -> dict[str, Any]:
    """A message as chat templates expect it; None for absent fields.

    Args:
        message: the message.
        parts: whether the template wants content as a list of parts.
        developer: whether the template knows the role `developer`; else it becomes `system`.
    """
    return {
        "role": "system" if message.role == "developer" and not developer else message.role,
        "content": _content(message, parts),
        "name": message.name,
        "tool_calls": list(map(_tool_call, message.tool_calls)) or None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning,
    }


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": _arguments(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _content(message: Message, parts: bool) -> str | list[dict[str, str]] | None:
    """The content as one string, which most templates expect; as a list with `parts` or if there are images."""
    content = message.content
    if isinstance(content, str) and parts:
        content = (TextPart(content),)
    if content is None or isinstance(content, str):
        return content
    # Text parts alone become one string, which every template without parts can render.
    if not parts and all(isinstance(part, TextPart) for part in content):
        return "".join(part.text for part in content if isinstance(part, TextPart))
    # Templates need no pixels: for an image they write its placeholder.
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"} for part in content
    ]


def _arguments(text: str) -> Any:
    """A call's arguments, decoded, because templates serialize them; text that is not JSON stays as it is."""
    try:
        # OpenAI's `arguments` is JSON in a string. Templates apply `tojson`, which would quote such a string once more.
        return json.loads(text)
    except ValueError:
        return text


def function(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates expect it."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters or {}}
    return {"type": "function", "function": function}


def strings_in(value: Any) -> list[str]:
    """All strings in a JSON value, except keys."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in strings_in(each)]


# --- the environment that templates run in -------------------------------------------------------------------------


class _Generation(Extension):
    """The tag `generation`, with which training marks the assistant's text; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own form

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Read the body up to `endgeneration`."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Not Jinja's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"{file.name} cannot be read: {error}") from None
