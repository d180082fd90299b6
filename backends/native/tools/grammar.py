"""Grammars for the answers of chat models, in llguidance's Lark: calls that hold, reasoning before them, formats.

A grammar has the parts `start: reasoning? (answer | calls | text)`. A tag that is a special token is in no text, so it
can only begin what it is the tag of. Where a tag is text, a text ends at the first one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from llguidance import regex_to_lark

from backends.native.grammar.grammar import grammar_source
from backends.native.grammar.schema_limits import check_schema
from backends.native.grammar.schema_text import schema_text
from backends.native.tools.answers import first_characters, without_calls
from backends.native.tools.arguments.schema import arguments_schema
from backends.native.tools.choice import callable_tools, is_free, max_calls, must_call, offered_tools
from backends.native.tools.family import CallFormat, Family
from backends.native.tools.literals import NUMBER
from backends.native.tools.tags import ANY, Tags, escaped
from schemas.errors import UnsupportedFeature
from schemas.ir import Generate, Grammar, Tool

_SHARED = ("$defs", "definitions")
_MEMBER = re.compile(r'"(\w+)": ')


def answer_grammar(
    request: Generate,
    family: Family,
    tags: Tags,
    *,
    text_tokens: Sequence[str] = (),
    in_reasoning: bool = False,
    any_arguments: bool = False,
) -> str | None:
    """A grammar for an answer with tools or a format; None if the answer is free.

    Args:
        request: a request that offers tools, or asks for a format.
        family: how the model writes calls and reasoning.
        tags: the special tokens of the tokenizer.
        text_tokens: special tokens that free text may have.
        in_reasoning: whether the prompt ends with the tag that opens reasoning.
        any_arguments: whether tools that are not strict take any object, instead of what their schemas say.

    Raises:
        schemas.errors.InvalidRequest: a schema exceeds the limits, or what is asked for cannot be held together.
    """
    tools = callable_tools(request) if offered_tools(request) else ()
    made = _Maker(family, tags, tools, _limit(request, family), any_arguments=any_arguments)
    if not tools:
        if request.grammar is None:
            return None
        if family.reasoning is None and not any(family.text):
            return grammar_source(request.grammar)
        body = made.answer(request.grammar)
    elif must_call(request):
        # A call is required: calls only, no text before them.
        body = made.calls()
    elif request.grammar is not None:
        # Free to call or not: the whole answer is either calls or what `response_format` defines.
        body = made.answer_or_calls(request.grammar)
    # A grammar ends where its text may end, so these two parameters would have no effect. The reader still drops calls
    # of functions that were not offered.
    elif is_free(request) and (request.stopping.ignore_eos or request.stopping.min_new_tokens):
        return None
    else:
        body = made.text_or_calls(text_tokens)
    return made.source(made.reasoning(in_reasoning) + body, request.grammar)


def _limit(request: Generate, family: Family) -> int:
    limit = max_calls(request)
    return limit if family.most is None else min(limit, family.most)


class _Maker:
    """Makes one grammar. Each method returns the expression for a part, and adds the rules that it needs."""

    def __init__(self, family: Family, tags: Tags, tools: Sequence[Tool], limit: int, *, any_arguments: bool) -> None:
        self._family = family
        self._tags = tags
        self._tools = tools
        self._limit = limit
        self._any_arguments = any_arguments
        self._rules: list[str] = []

    def source(self, start: str, grammar: Grammar | None) -> str:
        """The whole grammar."""
        lark = "\n".join((f"start: {start}", *self._rules)) + "\n"
        if grammar is None or grammar.kind != "ebnf":
            return lark
        # A grammar of the client's has a `start` of its own, and its rules may have any name.
        named = {"name": "format", "lark_grammar": grammar_source(grammar)}
        return json.dumps({"grammars": [{"lark_grammar": lark}, named]})

    def reasoning(self, opened: bool) -> str:
        """The reasoning before the answer: required up to its end if the prompt has opened it, else optional."""
        tags = self._family.reasoning
        if tags is None or not (opened or self._tags.starts(tags.opens)):
            return ""
        self._rules += self._tags.until("reasoning", tags.closes)
        self._rules.append(r"BREAKS: /\n{0,2}/")
        return "reasoning BREAKS " if opened else f"({self._tags.literal(tags.opens)} reasoning BREAKS)? "

    def answer(self, grammar: Grammar) -> str:
        """An answer in a format."""
        if grammar.kind == "ebnf":
            expression = "@format"
        elif grammar.kind == "regex":
            grammar_source(grammar)  # checks its size
            self._rules.append(f"answer: /{regex_to_lark(grammar.value)}/")
            expression = "answer"
        else:
            schema = {"type": "object"} if grammar.kind == "json_object" else grammar.value
            check_schema(schema, "response_format")
            self._rules.append(f"answer: %json {schema_text(schema)}")
            expression = "answer"
        return f"{self._text_opening()}{expression}{self._text_closing()}"

    def answer_or_calls(self, grammar: Grammar) -> str:
        """An answer in a format, or calls instead."""
        form = self._family.calls[0]
        if not form.at_start or self._family.text[0]:
            return f"({self.answer(grammar)} | {self.calls()})"
        # Both could begin with the same characters; a token before the calls tells them apart.
        if self._tags.starts(form.before):
            return f"({self.answer(grammar)} | {self._tags.literal(form.before)} {self.calls()})"
        begins = (form.opens + form.head)[0]
        if begins not in (openings := first_characters(grammar)):
            return f"({self.answer(grammar)} | {self.calls()})"
        if openings == "{" and form.in_object and (answers := without_calls(grammar, _members(form))) is not None:
            return f"({self.answer(answers)} | {self._call_objects()})"
        raise UnsupportedFeature(
            "The model writes tool calls as JSON, and an answer in this response format could look like one. Tools can "
            "be combined with the schema of an object that has no such properties.",
            feature="tools",
        )

    def _call_objects(self) -> str:
        """One call, an object, where an answer is an object, too.

        It is written by a schema like the answer: literals of both would begin alike, and the longer one win.
        """
        form = self._family.calls[0]
        name, arguments = _members(form)
        rules = []
        for place, tool in enumerate(self._tools):
            given = {"type": "object"} if self._any_arguments and not tool.strict else arguments_schema(tool.parameters)
            check_schema(given, "tools")
            members = {name: {"const": tool.name}, arguments: {key: given[key] for key in given if key not in _SHARED}}
            schema = {"type": "object", "properties": members, "required": [*members], "additionalProperties": False}
            # Definitions are found from the root of a schema.
            schema |= {key: given[key] for key in _SHARED if key in given}
            self._rules.append(f"call_{place}: %json {schema_text(schema, lenient=not tool.strict)}")
            rules.append(f"call_{place}")
        return f"({' | '.join(rules)})"

    def calls(self) -> str:
        """Calls only."""
        form = self._family.calls[0]
        if form.at_start:
            # One literal, name included: where text may begin, too, a shorter one would lose against the text.
            return self._calls("", form.head, first=form.opens + form.head)
        return self._calls(self._tags.literal(form.opens), form.head)

    def text_or_calls(self, text_tokens: Sequence[str]) -> str:
        """Free text, in which only a call begins with what calls begin with."""
        form, tags = self._family.calls[0], self._tags
        if form.at_start:
            before = f"{tags.literal(form.before)}?" if tags.starts(form.before) else ""
            self._rules.append(f"TEXT: /{ANY}/ & ~/{_beginning(form)}{ANY}/")
            return f"({self._with_tokens(text_tokens)} | {before} {self.calls()})"
        whole = form.opens + form.head
        rest = whole.removeprefix(form.trigger)
        in_opens = len(form.trigger) <= len(form.opens)
        opening, head = (form.opens[len(form.trigger) :], form.head) if in_opens else ("", rest)
        calls = self._calls(tags.literal(opening), form.head, first=head)
        if tags.starts(form.trigger):
            self._rules.append(f"TEXT: /{ANY}/")
            called = f"{tags.literal(form.trigger)} {calls}"
            if self._text_opening():
                return f"({self._text_opening()}TEXT{self._text_closing()} | {called})"
            return f"{self._with_tokens(text_tokens)} ({called})?"
        if len(begun := tags.before_token(form.trigger)) < len(form.trigger):
            # A token within the tag begins the call, and what precedes it there may occur in a text, too.
            self._rules += [f"TEXT: /{ANY}/", f"OPENED: /{ANY}{escaped(begun)}/"]
            token = tags.literal(form.trigger[len(begun) :])
            return f"{self._before(text_tokens)}(TEXT | OPENED {token} {calls})"
        # The tag is text. `opened` ends at the first one, and TEXT has none.
        self._rules += tags.until("opened", form.trigger)
        self._rules.append(f"TEXT: /{ANY}/ & ~/{ANY}{escaped(form.trigger)}{ANY}/")
        return f"{self._before(text_tokens)}(TEXT | opened {calls})"

    def _with_tokens(self, text_tokens: Sequence[str]) -> str:
        return f"{self._text_opening()}{self._before(text_tokens)}TEXT{self._text_closing()}"

    def _before(self, text_tokens: Sequence[str]) -> str:
        """Text with special tokens in it."""
        names = [self._tags.literal(name) for name in text_tokens if name not in self._family.markup]
        return f"(TEXT ({' | '.join(names)}))* " if names else ""

    def _text_opening(self) -> str:
        opens = self._tags.literal(self._family.text[0], optional_breaks=False)
        return f"{opens} " if opens else ""

    def _text_closing(self) -> str:
        closes = self._tags.literal(self._family.text[1])
        return f" {closes}" if closes else ""

    def _calls(self, opening: str, head: str, first: str | None = None) -> str:
        """Calls with what is between and behind them. `first` is the head of the first one, if it is another."""
        form = self._family.calls[0]
        self._arguments()
        self._heads("call", head)
        if first is not None and first != head:
            self._heads("first", first)
        begin = "first" if first is not None and first != head else "call"
        between = self._tags.literal(form.between)
        more = f"({between} call){{0,{self._limit - 1}}}" if self._limit > 1 else ""
        closes = self._tags.literal(form.closes)
        return " ".join(part for part in (opening, begin, more, closes) if part)

    def _heads(self, rule: str, head: str) -> None:
        form = self._family.calls[0]
        tail = self._literal(form.tail)
        calls = []
        for place, tool in enumerate(self._tools):
            name = json.dumps(tool.name)[1:-1] if head.endswith('"') else tool.name
            before = head + name + form.middle
            opening = json.dumps(before) if form.at_start else self._literal(before)
            calls.append(f"{opening} arguments_{place} {tail}")
        self._rules.append(f"{rule}: {' | '.join(calls)}")

    def _literal(self, text: str) -> str:
        """A literal of the format, in which a number is any."""
        pieces = [self._tags.literal(part) for part in text.split(NUMBER)]
        return " /[0-9]{1,4}/ ".join(pieces)

    def _arguments(self) -> None:
        form = self._family.calls[0]
        if any(rule.startswith("arguments_0:") for rule in self._rules):
            return
        for place, tool in enumerate(self._tools):
            free = self._any_arguments and not tool.strict
            schema = {"type": "object"} if free else arguments_schema(tool.parameters)
            check_schema(schema, "tools")
            # OpenAI: `strict` promises arguments that match the schema exactly. Otherwise unsupported keywords do not
            # reject the request.
            rule = f"arguments_{place}"
            self._rules += form.arguments.grammar(rule, schema, self._tags, lenient=not tool.strict)


def _members(form: CallFormat) -> tuple[str, str]:
    """The names of the members of a call, an object, that hold its name and its arguments."""
    name, arguments = _MEMBER.findall(form.head + form.middle)
    return name, arguments


def _beginning(form: CallFormat) -> str:
    """A pattern of what no text begins with, where calls are the whole answer."""
    if not form.opens and not form.head:  # the text has an opening of its own; what follows it may not begin a call
        return f"{ANY}{escaped(form.between.strip())}"
    if form.head:
        return r"\s*" + r"\s*".join(escaped(part) for part in (form.opens + form.head).split())
    return rf"\s*{escaped(form.opens)}[a-zA-Z0-9_.\-]+{escaped(form.middle.strip() or '{')}"
