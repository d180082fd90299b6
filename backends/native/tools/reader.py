"""Reads the answers of chat models while they are written: text, reasoning and tool calls, each apart.

Strategy:
- A state machine over the undecided text. Each state consumes what is decided and may hand over to the next state, so
  the result does not depend on how the text is cut into tokens.
- What looks like a call and turns out not to be one, or to be one of a function that was not offered, stays text.
- Arguments are passed on while they are generated.
- Tokens are consumed together with their text, so that each delta has the tokens of its text. Those of calls and of
  reasoning are in no delta. Special tokens count as text where the family's markup names them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from backends.native.tools.arguments.base import ArgumentsReader
from backends.native.tools.arguments.scanner import Scanner
from backends.native.tools.choice import max_calls, offered_tools
from backends.native.tools.family import CallFormat, Family
from backends.native.tools.pieces import Pieces, text_of
from schemas.ir import Delta, Finished, FinishReason, Generate, Token

_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "tool_name")


class AnswerReader:
    """Separates the reasoning and the tool calls of one choice from its text.

    Args:
        family: how the model writes them.
        schemas: the parameters of the functions that may be called, by name; without any, calls are text.
        limit: the number of calls that are accepted; what follows them is dropped.
        in_reasoning: whether the prompt ends with the tag that opens reasoning.
    """

    def __init__(
        self,
        family: Family,
        schemas: Mapping[str, Mapping[str, Any] | None],
        limit: int = 16,
        *,
        in_reasoning: bool = False,
    ) -> None:
        self._family = family
        self._schemas = schemas
        self._limit = limit
        self._markup = family.markup
        calls = family.calls if schemas else ()
        self._at_start = tuple(call for call in calls if call.at_start)
        self._formats = {call.trigger: [each for each in calls if each.trigger == call.trigger] for call in calls}
        self._formats.pop("", None)
        self._opens, self._closes = (family.reasoning.opens, family.reasoning.closes) if family.reasoning else ("", "")
        dropped = {*family.dropped, *family.text} - {""}
        tags = {*self._formats, *dropped, self._opens} - {""}
        if not family.text[0].startswith("<"):  # a word, which is markup at the start only
            tags.discard(family.text[0])
        self._tags = tuple(sorted(tags, key=len, reverse=True))
        self._tag = re.compile("|".join(map(re.escape, self._tags)) or "(?!)")
        self._text = ""  # undecided text
        self._tokens: list[Token] = []  # the tokens of the undecided text
        self._pieces = Pieces()
        self._candidates: list[CallFormat] = []  # of the call whose head is read
        self._format: CallFormat | None = None  # of the call that is read
        self._arguments: ArgumentsReader | None = None
        self._scanner = Scanner(ends_at=-1)
        self._said = False  # whether there was text that is not white space
        self._trims = in_reasoning  # whether white space that comes next is dropped
        self.reads_reasoning = family.reasoning is not None
        self.reasoning_tokens = 0
        self._state: Callable[[], bool] = self._in_reasoning if in_reasoning else self._in_start

    def feed(self, delta: Delta) -> list[Delta]:
        """What is decided with this delta: none, one, or several if calls, text and reasoning alternate."""
        self._push(delta.tokens)
        return self._pieces.take(delta)

    def finish(self, finished: Finished) -> list[Delta]:
        """The last deltas, with all undecided text; the last of them is the `Finished`."""
        self._push(finished.tokens)
        # A stop string within a call cuts it as the limit does.
        in_call = self._state == self._in_head or self._arguments is not None
        cut = finished.reason is FinishReason.LENGTH or (finished.reason is FinishReason.STOP_STRING and in_call)
        if self._state == self._in_reasoning:
            begun = _partial(self._text, (self._closes,)) if cut else 0
            self._reason(len(self._text), self._text[: len(self._text) - begun].rstrip())
        elif self._state in (self._in_start, self._in_text, self._in_head):
            # Undecided text was no call after all, so it is text.
            rest = self._without_markup() if cut else self._consume(len(self._text))
            # White space behind the last call separates calls and is no text, but its special tokens (the end token)
            # stay.
            between = self._pieces.calls > 0 and not text_of(rest).strip()
            self._pieces.add_text([token for token in rest if token.special] if between else rest)
        else:
            # What is left of a call is dropped: its arguments have been passed on as far as they came.
            if self._arguments is not None and not cut:
                self._pieces.add_arguments(self._arguments.close())
            self._pieces.add_text([token for token in self._consume(len(self._text)) if token.special])
        # The last call of a cut answer is incomplete: OpenAI reports `length`, not `tool_calls`.
        reason = FinishReason.TOOL_CALL if self._pieces.calls and not cut else finished.reason
        return self._pieces.take(replace(finished, reason=reason))

    def _without_markup(self) -> list[Token]:
        """The undecided tokens of an answer that was cut, without those of a call that had begun.

        Nobody can tell a cut tag from text that looks like it: more than its first character counts as a tag.
        """
        text = self._text
        found = self._tag.search(text)
        place = found.start() if found else len(text) - _partial(text, self._tags)
        if self._state == self._in_start and self._at_start and text.strip():
            place = 0  # a call's head, as far as it came
        if len(text.rstrip()) - place <= 1 and not found and not self._pieces.calls:
            place = len(text)
        # The white space before a tag separates the call from the text, as it does before a complete call.
        kept = self._consume(len(text[:place].rstrip()) if place < len(text) else len(text))
        self._consume(len(self._text))
        return kept

    def _push(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self._tokens.append(token)
            self._text += self._seen(token)
            # One token may complete several states, such as a tag and the call's head.
            while self._state():
                pass

    def _seen(self, token: Token) -> str:
        return "" if token.special and token.text not in self._markup else token.text

    # The states. Each consumes decided text and returns whether the next state should continue with the rest.

    def _in_start(self) -> bool:
        """Before any text: calls that are the whole answer, and the tag around a text that is only a word."""
        text = self._text.lstrip()
        if not text:
            return False
        opens = self._family.text[0]
        if opens and text.startswith(opens):
            self._consume(len(self._text) - len(text) + len(opens))
        elif opens and opens.startswith(text):
            return False
        elif self._at_start:
            begun = self._begins(self._at_start)
            if begun is not False:
                return begun is True
        self._state = self._in_text
        return True

    def _in_text(self) -> bool:
        if self._trims:
            self._consume(len(self._text) - len(self._text.lstrip()))
            self._trims = not self._text
        found = self._tag.search(self._text)
        # White space before a possible tag is held back as well: the model writes line breaks between text and calls,
        # which are not part of the text.
        end = found.start() if found else len(self._text) - _partial(self._text, self._tags)
        certain = self._text[:end].rstrip()
        self._said = self._said or bool(certain)
        self._pieces.add_text(self._consume(len(certain)))
        if found is None:
            return False
        if found[0] in self._formats:
            self._candidates = self._formats[found[0]]
            self._state = self._in_head
            return True
        self._consume(self._text.index(found[0]) + len(found[0]))
        if found[0] == self._opens:
            self._state, self._trims = self._in_reasoning, True
        elif not self._said:
            self._state = self._in_start
        return True

    def _in_reasoning(self) -> bool:
        closes = self._closes
        if self._trims:
            self._reason(len(self._text) - len(self._text.lstrip()), "")
            self._trims = not self._text
        place = self._text.find(closes)
        end = place if place >= 0 else len(self._text) - _partial(self._text, (closes,))
        certain = self._text[:end].rstrip()
        self._reason(len(certain), certain)
        if place < 0:
            return False
        self._reason(self._text.index(closes) + len(closes), "")
        self._state, self._trims = (self._in_text if self._said else self._in_start), True
        return True

    def _in_head(self) -> bool:
        begun = self._begins(self._candidates)
        if begun is False:
            begun = self._whole_object()
        if begun is False:
            tag = self._tag.search(self._text)
            self._said = True
            self._pieces.add_text(self._consume(tag.end() if tag else len(self._text)))
            self._state = self._in_text
        return begun is not None

    def _in_arguments(self) -> bool:
        assert self._arguments is not None
        assert self._format is not None
        step = self._arguments.read(self._text)
        self._pieces.add_arguments(step.json)
        self._consume(step.used)
        if step.done:
            self._arguments, self._scanner = None, Scanner(ends_at=-1)
            self._state = self._in_object if self._format.in_object else self._in_tail
        return step.done

    def _in_object(self) -> bool:
        """Behind the arguments: further members of the call's object."""
        ended = self._scanner.scan(self._text) is not None
        self._consume(self._scanner.place)
        self._scanner.place = 0
        if ended:
            self._state = self._in_tail
        return ended

    def _in_tail(self) -> bool:
        assert self._format is not None
        found = self._format.end.match(self._text, partial=True)
        if found is not None and found.partial:
            return False
        if found is None and self._text.lstrip()[:1] in ("}", "]"):  # a bracket too many
            self._consume(len(self._text) - len(self._text.lstrip()) + 1)
            return True
        self._consume(found.end() if found is not None else 0)
        if self._pieces.calls >= self._limit:
            self._state = self._in_rest
        else:
            self._state = self._in_between if self._format.has_section else self._in_text
        return True

    def _in_between(self) -> bool:
        assert self._format is not None
        following = self._format.next.match(self._text, partial=True)
        closing = self._format.closing.match(self._text, partial=True) if self._format.closes else None
        if following is not None and not following.partial and self._begin(self._format, following):
            return True
        if closing is not None and not closing.partial:
            self._consume(closing.end())
        elif (following is not None and following.partial) or closing is not None:
            return False
        self._state = self._in_text
        return True

    def _in_rest(self) -> bool:
        self._pieces.add_text([token for token in self._consume(len(self._text)) if token.special])
        return False

    # What the states do.

    def _begins(self, formats: Sequence[CallFormat]) -> bool | None:
        """Begin the call at the beginning of the text; False if there is none, None if that is not decided yet."""
        undecided = False
        for format in formats:
            found = format.first.match(self._text, partial=True)
            if found is not None and not found.partial and self._begin(format, found):
                return True
            undecided = undecided or (found is not None and found.partial)
        return None if undecided else False

    def _begin(self, format: CallFormat, found: Any) -> bool:
        name: str = found["name"]
        if "\\" in name and format.head.endswith('"'):
            name = json.loads(f'"{name}"', strict=False)
        if name not in self._schemas:
            return False
        self._open_call(format, name)
        self._consume(found.end())
        self._arguments = format.arguments.reader(self._schemas[name] or {})
        self._state = self._in_arguments
        return True

    def _open_call(self, format: CallFormat, name: str) -> None:
        self._format = format
        self._said = True
        self._pieces.add_call(name)

    def _whole_object(self) -> bool | None:
        """The same for a call whose members are in another order: it is decoded once its object is complete."""
        format = next((each for each in self._candidates if each.in_object), None)
        if format is None:
            return False
        opening = re.compile(rf"\s*{re.escape(format.trigger)}\s*\[?\s*").match(self._text)
        start = opening.end() if opening else 0
        if not self._text.startswith("{", start):
            return None if start == len(self._text) else False
        scanner = Scanner()
        scanner.place = start
        if scanner.scan(self._text) is None:
            return None
        call = _decode_call(self._text[start : scanner.place])
        if call is None or call[0] not in self._schemas:
            return False
        self._open_call(format, call[0])
        self._pieces.add_arguments(call[1])
        self._consume(scanner.place)
        self._state = self._in_tail
        return True

    def _reason(self, count: int, text: str) -> None:
        """Consume characters of reasoning, of which `text` is passed on."""
        before = len(self._tokens)
        self._consume(count)
        self.reasoning_tokens += before - len(self._tokens)
        if text:
            self._pieces.add_reasoning(text)

    def _consume(self, count: int) -> list[Token]:
        """Remove the first `count` characters; returns their tokens, the last one split if need be."""
        self._text = self._text[count:]
        taken: list[Token] = []
        while self._tokens and (size := len(self._seen(self._tokens[0]))) <= count:
            taken.append(self._tokens.pop(0))
            count -= size
        if count:
            # Both halves keep the whole token's bytes, so that the token can be identified.
            first = self._tokens[0]
            raw = first.bytes or first.text.encode()
            taken.append(replace(first, text=first.text[:count], bytes=raw))
            self._tokens[0] = replace(first, text=first.text[count:], bytes=raw)
        return taken


def answer_reader(request: Generate, family: Family, *, in_reasoning: bool = False) -> AnswerReader | None:
    """The reader of a choice; None if its answer is text and nothing else.

    Args:
        request: the request.
        family: how the model writes answers to it.
        in_reasoning: whether the prompt ends with the tag that opens reasoning.
    """
    tools = {tool.name: tool.parameters for tool in offered_tools(request)}
    if not tools and family.reasoning is None and not any(family.text):
        return None
    limit = max_calls(request)
    return AnswerReader(family, tools, min(limit, family.most or limit), in_reasoning=in_reasoning)


def _partial(text: str, tags: Sequence[str]) -> int:
    """The number of characters at the end that may be the beginning of a tag."""
    longest = max(map(len, tags), default=1) - 1
    for size in range(min(len(text), longest), 0, -1):
        ending = text[-size:]
        if any(tag.startswith(ending) and tag != ending for tag in tags):
            return size
    return 0


def _decode_call(body: str) -> tuple[str, str] | None:
    """Name and arguments of a call; None if the body is no call."""
    try:
        # Not strict: models write control characters in strings unescaped.
        call = json.loads(body, strict=False)
    except ValueError:
        return None
    if not isinstance(call, dict):
        return None
    call = call["function"] if isinstance(call.get("function"), dict) else call
    name = next((call[key] for key in _NAMES if isinstance(call.get(key), str)), None)
    if name is None:
        return None
    arguments: Any = next((call[key] for key in _ARGUMENTS if call.get(key)), {})
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments)
