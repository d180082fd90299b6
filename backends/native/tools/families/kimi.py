"""Kimi K2: a section of calls, whose names are numbered."""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.family import CallFormat, Family, Reasoning
from backends.native.tools.literals import NUMBER

KIMI = Family(
    name="kimi_k2",
    marks=("<|tool_calls_section_begin|>",),
    calls=(
        CallFormat(
            trigger="<|tool_calls_section_begin|>",
            opens="<|tool_calls_section_begin|>",
            head="<|tool_call_begin|>functions.",
            middle=f":{NUMBER}<|tool_call_argument_begin|>",
            arguments=JSON,
            tail="<|tool_call_end|>",
            closes="<|tool_calls_section_end|>",
        ),
    ),
    reasoning=Reasoning("<think>", "</think>"),
)
