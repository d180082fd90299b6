"""Tool calls in a model's text: parsed as they are generated, and enforced by a grammar if a call is required.

The format is that of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call. Text
that looks like a call and turns out not to be one stays text.

Strategy (`ToolParser`):
- A state machine over the undecided text: in text, in a call's head, in its arguments, in its tail, in the rest after
  the last call that is accepted. Each state consumes what is decided and may hand over to the next state.
- Arguments are passed on while they are generated: their end is found by counting brackets outside of strings.
- Tokens are consumed together with their text, so that each delta has the tokens of its text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from backends.native.grammar.schema_limits import check_schema
from schemas.ir import Delta, Finished, FinishReason, Generate, Grammar, Token, Tool, ToolDelta

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_MAX_CALLS = 16
"""Per answer; the grammar allows no more, and the parser drops further calls."""
# The name must come first and the arguments must be an object, whose `{` stays in the text (lookahead): only then can
# the arguments be streamed. Calls in any other form are decoded when they are complete.
_CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_SAYS_NO_PROPERTY = {"type", "properties", "required", "title", "description", "$schema"}
"""Keywords of a schema that do not describe a property of the object, if `properties` is empty."""
_JSON_MARK = re.compile(r'["\\{}\[\]]')


def can_call(template: object) -> bool:
    """Whether a chat template makes the model write its calls in this format."""
    text = str(template)
    xml = "<function=" in text  # Qwen3-Coder's calls: XML within the same tags
    return OPEN in text and "tools" in text and not xml


def offered_tools(request: Generate) -> tuple[Tool, ...]:
    """The tools that are shown to the model."""
    choice = request.tool_choice
    if choice is None or choice.mode in ("auto", "required", "named"):
        return request.tools
    return tuple(tool for tool in request.tools if tool.name in choice.names)  # mode "none" names none


def max_calls(request: Generate) -> int:
    """The number of calls that an answer may have."""
    named = request.tool_choice is not None and request.tool_choice.mode == "named"
    return 1 if named or request.parallel_tool_calls is False else _MAX_CALLS


def is_free(request: Generate) -> bool:
    """Whether an answer with tools may be any text: no call is required, no tool is strict, no format is asked for."""
    choice = request.tool_choice
    required = choice is not None and (choice.mode in ("required", "named") or choice.required)
    return not (required or request.grammar is not None or any(tool.strict for tool in offered_tools(request)))


def tool_grammar(
    request: Generate, *, tags_are_tokens: bool, text_tokens: Sequence[str] = (), any_arguments: bool = False
) -> str | None:
    """A grammar for the calls that an answer must or may have, in llguidance's Lark; None if the answer is free.

    Args:
        request: a request that offers tools.
        tags_are_tokens: whether the tags around a call are special tokens, which no text contains.
        text_tokens: special tokens that free text may have, such as those around reasoning.
        any_arguments: whether tools that are not strict take any object, instead of what their schemas say.

    Raises:
        schemas.errors.InvalidRequest: a schema exceeds the limits.
    """
    choice, tools = request.tool_choice, offered_tools(request)
    required = choice is not None and (choice.mode in ("required", "named") or choice.required)
    if choice is not None and choice.mode == "named":
        tools = tuple(tool for tool in tools if tool.name in choice.names)
    calls = _call_rules(tools, tags_are_tokens, any_arguments=any_arguments)
    limit = max_calls(request)
    if required:
        # A call is required: calls only, no text before them.
        return f"start: call{{1,{limit}}}\n{calls}"
    # Free to call or not: the whole answer is either calls or what `response_format` defines.
    if request.grammar is not None:
        return f"start: answer | call{{1,{limit}}}\n{calls}{_answer_rule(request.grammar)}"
    # A grammar ends where its text may end, so these two parameters would have no effect. The parser still drops calls
    # of functions that were not offered.
    if is_free(request) and (request.stopping.ignore_eos or request.stopping.min_new_tokens):
        return None
    return _text_rules(limit, tags_are_tokens, text_tokens) + calls


def _text_rules(limit: int, tags_are_tokens: bool, text_tokens: Sequence[str]) -> str:
    """Free text before the calls, in which only a call begins with the opening tag."""
    if tags_are_tokens:
        # TEXT matches no special token, so a tag can only begin a call.
        start, text = f"TEXT call{{0,{limit}}}", "TEXT: /(?s:.*)/\n"
    else:
        # The tag is text. `suffix` ends the text at the first tag, and TEXT has none.
        start = f"(TEXT | opened called call{{0,{limit - 1}}})"
        text = f"opened[suffix={json.dumps(OPEN)}]: /(?s:.*)/\nTEXT: /(?s:.*)/ & ~/(?s:.*){OPEN}(?s:.*)/\n"
    before = f"(TEXT ({' | '.join(text_tokens)}))* " if text_tokens else ""
    return f"start: {before}{start}\n{text}"


def _call_rules(tools: Sequence[Tool], tags_are_tokens: bool, *, any_arguments: bool) -> str:
    # llguidance is a part of the engine, which a gateway of remote servers does not install.
    from backends.native.grammar.grammar import schema_text

    # In llguidance's Lark `<name>` without quotes is the special token of that name; in quotes it is text.
    opening, closing = (OPEN, CLOSE) if tags_are_tokens else (json.dumps(OPEN), json.dumps(CLOSE))
    names = " | ".join(f"call_{place}" for place in range(len(tools)))
    lines = [f"call: {opening} called", rf'called: "\n"? ({names}) "\n"? {closing} "\n"?']
    for place, tool in enumerate(tools):
        schema = {"type": "object"} if any_arguments and not tool.strict else _arguments_schema(tool)
        check_schema(schema, "tools")
        # The spacing of `json.dumps`, with which chat templates render calls.
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        lines.append(f'call_{place}: {json.dumps(head)} arguments_{place} "}}"')
        # OpenAI: `strict` promises arguments that match the schema exactly. Otherwise unsupported keywords do not
        # reject the request.
        lines.append(f"arguments_{place}: %json {schema_text(schema, lenient=not tool.strict)}")
    return "\n".join(lines) + "\n"


def _arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments. A tool without parameters is called with `{}`."""
    schema = {"type": "object"} | (tool.parameters or {})
    # In JSON Schema an object without `properties` may have any. OpenAI: "Omitting `parameters` defines a function with
    # an empty parameter list."
    if set(schema) <= _SAYS_NO_PROPERTY and not schema.get("properties"):
        schema["additionalProperties"] = False
    return schema


def _answer_rule(grammar: Grammar) -> str:
    from llguidance import regex_to_lark

    from backends.native.grammar.grammar import schema_text

    if grammar.kind == "regex":
        return f"answer: /{regex_to_lark(grammar.value)}/\n"
    schema = {"type": "object"} if grammar.kind == "json_object" else grammar.value
    check_schema(schema, "response_format")
    return f"answer: %json {schema_text(schema)}\n"


class ToolParser:
    """Separates the tool calls of one choice from its text. The result does not depend on how the text is split.

    Args:
        limit: the number of calls that are accepted; what follows them is dropped.
        names: the functions that may be called.
    """

    def __init__(self, limit: int, names: Collection[str]) -> None:
        self._limit = limit
        self._names = names
        self._state: Callable[[], bool] = self._in_text
        self._text = ""  # undecided text
        self._tokens: list[Token] = []  # the tokens of the undecided text
        self._ready: list[Token] = []  # text that is not part of a call, for the next delta
        self._calls: list[ToolDelta] = []  # for the next delta
        self._count = 0  # calls so far
        self._depth = 0
        self._quoted = False

    def feed(self, delta: Delta) -> Delta | None:
        """The delta without its calls' text, and with the calls; None if nothing is decided yet."""
        self._push(delta.tokens)
        tokens, calls = self._take_ready()
        return replace(delta, text=_text(tokens), tokens=tokens, tool_calls=calls) if tokens or calls else None

    def finish(self, finished: Finished) -> Finished:
        """The last delta, with all undecided text."""
        # Undecided text was no call after all, so it is text. What is left of a call that was cut off is dropped: its
        # arguments have been passed on as far as they came.
        self._push(finished.tokens)
        if self._state in (self._in_text, self._in_head):
            rest = self._consume(len(self._text))
            if finished.reason is FinishReason.LENGTH:
                rest = self._without_markup(rest)
            # White space behind the last call separates calls and is no text, but its special tokens (the end token)
            # stay.
            between = self._count > 0 and not _text(rest).strip()
            self._ready += [token for token in rest if token.special] if between else rest
        tokens, calls = self._take_ready()
        # With LENGTH the last call may be incomplete, and OpenAI reports `length`, not `tool_calls`.
        ended = self._count > 0 and finished.reason is not FinishReason.LENGTH
        reason = FinishReason.TOOL_CALL if ended else finished.reason
        return replace(finished, text=_text(tokens), tokens=tokens, tool_calls=calls, reason=reason)

    def _without_markup(self, rest: list[Token]) -> list[Token]:
        """The undecided tokens of an answer that the limit has cut, without those of a call that had begun.

        Nobody can tell a cut tag from text that looks like it: more than its first character counts as a tag.
        """
        text = _text(rest)
        place = text.find(OPEN)
        if place < 0:
            partial = _partial_tag(text)
            place = len(text) - partial if partial > 1 else len(text)
        if place == len(text):
            return rest
        self._tokens, self._text = rest, text
        # The white space before a tag separates the call from the text, as it does before a complete call.
        kept = self._consume(len(text[:place].rstrip()))
        self._consume(len(self._text))
        return kept

    def _push(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self._tokens.append(token)
            self._text += _visible(token)
            # One token may complete several states, such as a tag and the call's head.
            while self._state():
                pass

    def _take_ready(self) -> tuple[tuple[Token, ...], tuple[ToolDelta, ...]]:
        ready, self._ready, calls, self._calls = self._ready, [], self._calls, []
        return tuple(ready), tuple(calls)

    # The states. Each consumes decided text and returns whether the next state should continue with the rest.

    def _in_text(self) -> bool:
        # White space before a possible tag is held back as well: the model writes line breaks between text and calls,
        # which are not part of the text.
        place = self._text.find(OPEN)
        certain = self._text[: place if place >= 0 else len(self._text) - _partial_tag(self._text)].rstrip()
        self._ready += self._consume(len(certain))
        if place >= 0:
            self._state = self._in_head
        return place >= 0

    def _in_head(self) -> bool:
        start = self._text.index(OPEN) + len(OPEN)
        head = _CALL_HEAD.match(self._text, start)
        # Not strict: models write control characters in strings unescaped.
        name: str | None = json.loads(head[1], strict=False) if head else None
        if head and name is not None and name in self._names:
            self._begin_call(name)
            self._consume(head.end())
            self._depth, self._quoted = 0, False
            self._state = self._in_arguments
            return True
        # Another form, or a head that has not arrived completely: wait for the closing tag.
        end = self._text.find(CLOSE, start)
        if end < 0:
            return False
        call = _decode_call(self._text[start:end])
        # No call, or of a function that was not offered: tags and body are text, as the model wrote them.
        if call is None or call[0] not in self._names:
            self._ready += self._consume(end + len(CLOSE))
            self._state = self._in_text
        else:
            self._begin_call(call[0])
            self._add_arguments(call[1])
            # The closing tag stays for `_in_tail`, as after streamed arguments.
            self._consume(end)
            self._state = self._in_tail
        return True

    def _in_arguments(self) -> bool:
        certain = self._arguments_length()
        if certain:
            self._add_arguments(self._text[:certain])
            self._consume(certain)
        # The depth is 0 before the first bracket, too: then nothing has been consumed.
        if self._depth == 0 and certain:
            self._state = self._in_tail
            return True
        return False

    def _in_tail(self) -> bool:
        end = self._text.find(CLOSE)
        if end < 0:
            # Drop what is no part of the tag (the object's last `}`), but keep what may be its beginning.
            self._consume(max(0, len(self._text) - len(CLOSE)))
            return False
        self._consume(end + len(CLOSE))
        self._state = self._in_text if self._count < self._limit else self._in_rest
        return True

    def _in_rest(self) -> bool:
        self._consume(len(self._text))
        return False

    def _begin_call(self, name: str) -> None:
        # The form of OpenAI's ids: `call_` and 24 characters.
        self._calls.append(ToolDelta(self._count, f"call_{secrets.token_hex(12)}", name))
        self._count += 1

    def _add_arguments(self, text: str) -> None:
        last = self._calls[-1] if self._calls else None
        # One delta for all arguments since the last delta. The opening delta, which has the id and the name, stays
        # separate, as in OpenAI's streams.
        if last is not None and last.id is None and last.index == self._count - 1:
            self._calls[-1] = replace(last, arguments=last.arguments + text)
        else:
            self._calls.append(ToolDelta(self._count - 1, arguments=text))

    def _arguments_length(self) -> int:
        """The number of characters that belong to the arguments, which are complete if the depth is 0 afterwards."""
        place = 0
        # Only marks matter, so the regex engine skips all other characters. The state (`_depth`, `_quoted`) lasts from
        # call to call, and each call scans only text that is new.
        while mark := _JSON_MARK.search(self._text, place):
            place = mark.end()
            if mark[0] == "\\":
                if place == len(self._text):
                    return mark.start()  # the escaped character has not arrived
                place += 1
            elif mark[0] == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if mark[0] in "{[" else -1
                if self._depth == 0:
                    return place
        return len(self._text)

    def _consume(self, count: int) -> list[Token]:
        """Remove the first `count` characters; returns their tokens, the last one split if need be."""
        self._text = self._text[count:]
        taken: list[Token] = []
        while self._tokens and (size := len(_visible(self._tokens[0]))) <= count:
            taken.append(self._tokens.pop(0))
            count -= size
        if count:
            # Both halves keep the whole token's bytes, so that the token can be identified.
            first = self._tokens[0]
            raw = first.bytes or first.text.encode()
            taken.append(replace(first, text=first.text[:count], bytes=raw))
            self._tokens[0] = replace(first, text=first.text[count:], bytes=raw)
        return taken


def _partial_tag(text: str) -> int:
    """The number of characters at the end that may be the beginning of an opening tag."""
    return next((size for size in range(min(len(text), len(OPEN) - 1), 0, -1) if text.endswith(OPEN[:size])), 0)


def _decode_call(body: str) -> tuple[str, str] | None:
    """Name and arguments of a call whose keys are in another order; None if the body is no call."""
    try:
        call = json.loads(body, strict=False)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return call["name"], json.dumps(call.get("arguments", call.get("parameters")) or {})


def _visible(token: Token) -> str:
    return "" if token.special else token.text


def _text(tokens: Sequence[Token]) -> str:
    return "".join(map(_visible, tokens))
