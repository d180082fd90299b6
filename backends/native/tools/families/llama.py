"""Llama 3 (the whole answer is JSON) and Llama 3.2 and 4 with Python's calls (the whole answer is a list of them)."""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.arguments.keywords import Keywords
from backends.native.tools.family import CallFormat, Family, member

_HEAD, _MIDDLE = member(arguments="parameters")


def _json(head: str, middle: str) -> CallFormat:
    return CallFormat(
        head=head,
        middle=middle,
        arguments=JSON,
        tail="}",
        between="; ",
        in_object=True,
        at_start=True,
        before="<|python_tag|>",
    )


LLAMA_JSON = Family(
    name="llama3_json",
    marks=('{"name": function name, "parameters": dictionary of argument name and its value}',),
    calls=(
        _json(_HEAD, _MIDDLE),
        _json(_HEAD, member()[1]),
        _json(f'{{"type": "function", {_HEAD[1:]}', _MIDDLE),
    ),
)

PYTHONIC = Family(
    name="pythonic",
    marks=("[func_name1(",),
    calls=(
        CallFormat(
            opens="[",
            middle="(",
            arguments=Keywords(),
            tail=")",
            between=", ",
            closes="]",
            at_start=True,
            before="<|python_start|>",
        ),
    ),
    dropped=("<|python_end|>",),
)
