"""Chats for servers that take raw text only: rendered by a chat template, and tool calls parsed from the answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec.structs import replace
from tokenizers import Tokenizer

from backends.base import Feature
from backends.chat_template import ChatTemplate
from backends.chat_template.files import find_source, find_special_tokens
from backends.chat_template.messages import function, strings_in, turn
from backends.native.text.tool_parser import ToolParser, can_call, max_calls, offered_tools
from backends.prompts import as_asked, images_of
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, Delta, Event, Events, Finished, Generate, TextPrompt, Token, Tool

_CONTROL_TOKEN = re.compile(r"<\|[^<>|\s]+\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")
"""The names of control tokens in a template, for templates that come without their tokenizer."""


class ChatText:
    """Renders chats, and reads the tool calls of their answers. To make one blocks: it starts a process.

    Args:
        source: the model's chat template, in Jinja.
        special_tokens: `bos_token`, `eos_token`, …, as the template is to write them.
        added_tokens: names of the tokens that a tokenizer finds in any text; by default those in the template.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, added_tokens: Collection[str] = ()
    ) -> None:
        self._template = ChatTemplate(source, special_tokens)
        names = added_tokens or _CONTROL_TOKEN.findall(source)
        self._control_tokens = re.compile("|".join(map(re.escape, names)) or "(?!)")  # `(?!)` never matches
        # What the template adds to a server of raw text.
        calls = {Feature.TOOLS} if can_call(source) else set()
        self.features = frozenset({Feature.CHAT, Feature.TEMPLATE_OPTIONS} | calls)

    def close(self) -> None:
        """Stop the template's processes."""
        self._template.close()

    def call_reader(self, request: Generate) -> CallReader | None:
        """The reader of the calls in an answer's text; None if no tool may be called."""
        return CallReader(request) if offered_tools(request) else None

    async def text(self, prompt: ChatPrompt, tools: tuple[Tool, ...]) -> TextPrompt:
        """A chat as the server gets it, up to where the answer begins, with its images beside it.

        Raises:
            schemas.errors.InvalidRequest: the template rejects the messages, or they name a control token.
            schemas.errors.UnsupportedFeature: there are images, and the template has no place for them.
        """
        images = images_of(prompt)
        if images and not self._template.knows_images:
            raise UnsupportedFeature("The model's chat template has no place for images.", feature="images")
        turns = [turn(message, self._template) for message in prompt.messages]
        # The separator keeps two strings from forming a token's name together.
        if self._control_tokens.search("\0".join(strings_in([*turns, prompt.template.variables]))):
            raise InvalidRequest(  # the server would read it as the token: a message could forge another role's turn
                "The messages contain the name of a control token, which the server cannot distinguish from the token.",
                param="messages",
            )
        return TextPrompt(await self._template.render(turns, list(map(function, tools)), prompt.template), images)

    async def rendered(self, request: Generate) -> Generate:
        """The request with text instead of chats. Without chats it is returned as it is.

        Raises:
            schemas.errors.UnsupportedFeature: a tool must be called, or called by its schema.
            schemas.errors.InvalidRequest: the template rejects the messages.
        """
        prompts = as_asked(request)
        if not any(isinstance(prompt, ChatPrompt) for prompt in prompts):
            return request
        tools = offered_tools(request) if request.tools else ()
        _check_tools(request, tools)
        texts = [await self.text(each, tools) if isinstance(each, ChatPrompt) else each for each in prompts]
        return replace(
            request, prompts=tuple(texts), raw_prompt=True, tools=(), tool_choice=None, parallel_tool_calls=None
        )


class CallReader:
    """Reads the tool calls out of an answer's text.

    Args:
        request: the request before it was rendered.
    """

    def __init__(self, request: Generate) -> None:
        self._limit = max_calls(request)
        self._names = frozenset(tool.name for tool in offered_tools(request))
        self._parsers: dict[int, ToolParser] = {}

    def feed(self, events: Events) -> Events:
        """The same events, with calls instead of their text. May hold text back that could become a call."""
        return tuple(found for event in events if (found := self._read(event)) is not None)

    def _read(self, event: Event) -> Event | None:
        if not isinstance(event, Delta):
            return event
        parser = self._parsers.setdefault(event.choice, ToolParser(self._limit, self._names))
        # The parser reads tokens. A text without any is one token for it, and a text again behind it.
        has_tokens = bool(event.tokens)
        if not has_tokens and event.text:
            event = replace(event, tokens=(Token(None, event.text),))
        read = parser.finish(event) if isinstance(event, Finished) else parser.feed(event)
        return read if read is None or has_tokens else replace(read, tokens=())


def load_chat_text(template: str | None, tokenizer: str | None) -> ChatText | None:
    """Load a backend's chat template; None if it has none.

    Args:
        template: the template or a file of it, as configured.
        tokenizer: the `tokenizer.json` or the folder of it, as configured.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not of the expected form.
    """
    path = Path(tokenizer) if tokenizer is not None else None
    folder = path.parent if path is not None and path.is_file() else path
    source = find_source(template, folder)
    if source is None:
        return None
    if folder is None:
        return ChatText(source)
    try:
        loaded = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"the tokenizer {tokenizer} cannot be read: {error}") from None
    special = find_special_tokens(folder)
    # The server tokenizes raw text with its beginning-of-sequence token: a template's own would be a second one.
    if loaded.encode("").tokens[:1] == [special.get("bos_token")]:
        special["bos_token"] = ""
    added = [token.content for token in loaded.get_added_tokens_decoder().values()]
    return ChatText(source, special, added)


def _check_tools(request: Generate, offered: tuple[Tool, ...]) -> None:
    """Refuse what only a grammar over text and calls could promise."""
    choice = request.tool_choice
    if choice is not None and (choice.mode in ("required", "named") or choice.required):
        raise _refused("The model's server cannot be made to call a tool: 'tool_choice' must be 'auto' or 'none'.")
    if any(tool.strict for tool in offered):
        raise _refused("The model's server cannot hold the calls of strict tools to their schema.")
    if offered and request.grammar is not None:
        raise _refused("The model's server cannot combine tools with a response format.")


def _refused(message: str) -> UnsupportedFeature:
    return UnsupportedFeature(message, feature="tools")
