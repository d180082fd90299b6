"""Tool calls in a model's text: found as it is written, and made certain by grammar where one must be called.

The form is that of Hermes and Qwen, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as often as there are
calls. What looks like a call and turns out to be none stays text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence

from llguidance import regex_to_lark
from msgspec.structs import replace

from backends.native.grammar.grammar import styled
from backends.native.grammar.schema_limits import check_schema
from schemas.ir import Delta, Finished, FinishReason, Generate, Grammar, Token, Tool, ToolDelta

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_MOST_CALLS = 16
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_MARK = re.compile(r'["\\{}\[\]]')


def can_call(template: object) -> bool:
    """Whether a chat template has the model write its calls in this form."""
    text = str(template)
    return OPEN in text and "tools" in text and "<function=" not in text  # the latter: Qwen3-Coder's XML in such tags


def offered_tools(request: Generate) -> tuple[Tool, ...]:
    """The tools that the model is told of."""
    choice = request.tool_choice
    if choice is None or choice.mode in ("auto", "required", "named"):
        return request.tools
    return tuple(tool for tool in request.tools if tool.name in choice.names)  # of "none", none


def max_calls(request: Generate) -> int:
    """How many calls an answer may hold."""
    named = request.tool_choice is not None and request.tool_choice.mode == "named"
    return 1 if named or request.parallel_tool_calls is False else _MOST_CALLS


def tool_grammar(request: Generate, *, tags_are_tokens: bool) -> str | None:
    """The calls that an answer must or may consist of, in llguidance's Lark; None if it is free.

    Args:
        request: with tools on offer.
        tags_are_tokens: whether the tags around a call have tokens of their own, which no text contains.

    Raises:
        schemas.errors.InvalidRequest: a schema is beyond the limits.
    """
    choice, tools = request.tool_choice, offered_tools(request)
    must = choice is not None and (choice.mode in ("required", "named") or choice.required)
    if choice is not None and choice.mode == "named":
        tools = tuple(tool for tool in tools if tool.name in choice.names)
    if must:
        start = f"call{{1,{max_calls(request)}}}"
        return _lark(start, tools, tags_are_tokens)
    if request.grammar is not None:
        start = f"answer | call{{1,{max_calls(request)}}}"
        return _lark(start, tools, tags_are_tokens) + _answer(request.grammar)
    if tags_are_tokens and any(tool.strict for tool in tools):
        return _lark(f"TEXT call{{0,{max_calls(request)}}}", tools, tags_are_tokens) + "TEXT: /(?s:.*)/\n"
    return None


def _lark(start: str, tools: Sequence[Tool], tags_are_tokens: bool) -> str:
    opening, closing = (OPEN, CLOSE) if tags_are_tokens else (json.dumps(OPEN), json.dumps(CLOSE))
    names = " | ".join(f"call_{place}" for place in range(len(tools)))
    lines = [f"start: {start}", rf'call: {opening} "\n"? ({names}) "\n"? {closing} "\n"?']
    for place, tool in enumerate(tools):
        schema = {"type": "object"} | (tool.parameters or {})
        check_schema(schema, "tools")
        head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
        lines.append(f'call_{place}: {json.dumps(head)} arguments_{place} "}}"')
        lines.append(f"arguments_{place}: %json {styled(schema, lenient=not tool.strict)}")
    return "\n".join(lines) + "\n"


def _answer(grammar: Grammar) -> str:
    if grammar.kind == "regex":
        return f"answer: /{regex_to_lark(grammar.value)}/\n"
    schema = {"type": "object"} if grammar.kind == "json_object" else grammar.value
    check_schema(schema, "response_format")
    return f"answer: %json {styled(schema)}\n"


class ToolParser:
    """Takes the calls out of one choice's deltas. The result does not depend on how the text was cut into deltas.

    Args:
        most: calls that are taken; what comes after them is dropped.
    """

    def __init__(self, most: int = _MOST_CALLS) -> None:
        self._most = most
        self._phase: Callable[[], bool] = self._in_text
        self._text = ""  # what is undecided, and the tokens that it is made of
        self._held: list[Token] = []
        self._told: list[Token] = []
        self._calls: list[ToolDelta] = []
        self._count = 0
        self._depth = 0
        self._quoted = False

    def feed(self, delta: Delta) -> Delta | None:
        """What a delta says beyond calls, and of calls; None if that is nothing yet."""
        self._take(delta.tokens)
        tokens, calls = self._flush()
        return replace(delta, text=_text(tokens), tokens=tokens, tool_calls=calls) if tokens or calls else None

    def finish(self, finished: Finished) -> Finished:
        """The last delta, with what was held back."""
        self._take(finished.tokens)
        if self._phase in (self._in_text, self._in_head):
            rest = self._split(len(self._text))
            between = self._count > 0 and not _text(rest).strip()
            self._told += [token for token in rest if token.special] if between else rest
        tokens, calls = self._flush()
        ended = self._count > 0 and finished.reason is not FinishReason.LENGTH
        reason = FinishReason.TOOL_CALL if ended else finished.reason
        return replace(finished, text=_text(tokens), tokens=tokens, tool_calls=calls, reason=reason)

    def _take(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self._held.append(token)
            self._text += _visible(token)
            while self._phase():
                pass

    def _flush(self) -> tuple[tuple[Token, ...], tuple[ToolDelta, ...]]:
        told, self._told, calls, self._calls = self._told, [], self._calls, []
        return tuple(told), tuple(calls)

    # Each phase works on the undecided text and says whether another one should go on with the rest.

    def _in_text(self) -> bool:
        place = self._text.find(OPEN)
        certain = self._text[: place if place >= 0 else len(self._text) - _begun(self._text)].rstrip()
        self._told += self._split(len(certain))
        if place >= 0:
            self._phase = self._in_head
        return place >= 0

    def _in_head(self) -> bool:
        start = self._text.index(OPEN) + len(OPEN)
        if head := _HEAD.match(self._text, start):
            self._begin(json.loads(head[1], strict=False))
            self._split(head.end())
            self._depth, self._quoted = 0, False
            self._phase = self._in_arguments
            return True
        end = self._text.find(CLOSE, start)
        if end < 0:
            return False
        call = _whole(self._text[start:end])
        if call is None:
            self._told += self._split(end + len(CLOSE))
            self._phase = self._in_text
        else:
            self._begin(call[0])
            self._argue(call[1])
            self._split(end)
            self._phase = self._in_tail
        return True

    def _in_arguments(self) -> bool:
        certain = self._end_of_arguments()
        if certain:
            self._argue(self._text[:certain])
            self._split(certain)
        if self._depth == 0 and certain:
            self._phase = self._in_tail
            return True
        return False

    def _in_tail(self) -> bool:
        end = self._text.find(CLOSE)
        if end < 0:
            self._split(max(0, len(self._text) - len(CLOSE)))
            return False
        self._split(end + len(CLOSE))
        self._phase = self._in_text if self._count < self._most else self._in_rest
        return True

    def _in_rest(self) -> bool:
        self._split(len(self._text))
        return False

    def _begin(self, name: str) -> None:
        self._calls.append(ToolDelta(self._count, f"call_{secrets.token_hex(12)}", name))
        self._count += 1

    def _argue(self, text: str) -> None:
        last = self._calls[-1] if self._calls else None
        if last is not None and last.id is None and last.index == self._count - 1:
            self._calls[-1] = replace(last, arguments=last.arguments + text)
        else:
            self._calls.append(ToolDelta(self._count - 1, arguments=text))

    def _end_of_arguments(self) -> int:
        """How much of the text is arguments; they are complete if the depth is 0 then."""
        place = 0
        while mark := _MARK.search(self._text, place):
            place = mark.end()
            if mark[0] == "\\":
                if place == len(self._text):
                    return mark.start()  # what it escapes is still to come
                place += 1
            elif mark[0] == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if mark[0] in "{[" else -1
                if self._depth == 0:
                    return place
        return len(self._text)

    def _split(self, count: int) -> list[Token]:
        """Take the first `count` characters, and the tokens that they are made of, away."""
        self._text = self._text[count:]
        taken: list[Token] = []
        while self._held and (size := len(_visible(self._held[0]))) <= count:
            taken.append(self._held.pop(0))
            count -= size
        if count:
            first = self._held[0]
            raw = first.bytes or first.text.encode()
            taken.append(replace(first, text=first.text[:count], bytes=raw))
            self._held[0] = replace(first, text=first.text[count:], bytes=raw)
        return taken


def _begun(text: str) -> int:
    """How many characters at the end may be the beginning of a call."""
    return next((size for size in range(min(len(text), len(OPEN) - 1), 0, -1) if text.endswith(OPEN[:size])), 0)


def _whole(body: str) -> tuple[str, str] | None:
    """Name and arguments of a call that is not written in the usual order; None if it is no call."""
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
