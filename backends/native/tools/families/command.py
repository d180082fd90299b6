"""Command R7B and A: a JSON list of actions, and tags around every part of an answer. Command R: a block of code."""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.family import CallFormat, Family, Reasoning, member
from backends.native.tools.literals import NUMBER

_HEAD, _MIDDLE = member("tool_name", "parameters")

COMMAND = Family(
    name="command_a",
    marks=("<|START_ACTION|>",),
    calls=(
        CallFormat(
            trigger="<|START_ACTION|>",
            opens="<|START_ACTION|>[\n",
            head=f'{{"tool_call_id": "{NUMBER}", {_HEAD[1:]}',
            middle=_MIDDLE,
            arguments=JSON,
            tail="}",
            between=",\n",
            closes="\n]<|END_ACTION|>",
            in_object=True,
        ),
    ),
    reasoning=Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),
    text=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    dropped=("<|START_TEXT|>", "<|END_TEXT|>"),
)

COMMAND_R = Family(
    name="command_r",
    marks=("Action:", "```json", "tool_name"),
    calls=(
        CallFormat(
            trigger="Action:\n```json",
            opens="Action:\n```json\n[\n",
            head=_HEAD,
            middle=_MIDDLE,
            arguments=JSON,
            tail="}",
            between=",\n",
            closes="\n]\n```",
            in_object=True,
        ),
    ),
)
