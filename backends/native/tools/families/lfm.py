"""LFM2: a list of Python's calls between tokens."""

from __future__ import annotations

from backends.native.tools.arguments.keywords import Keywords
from backends.native.tools.family import CallFormat, Family

LFM = Family(
    name="lfm2",
    marks=("<|tool_call_start|>",),
    calls=(
        CallFormat(
            trigger="<|tool_call_start|>",
            opens="<|tool_call_start|>[",
            middle="(",
            arguments=Keywords(),
            tail=")",
            between=", ",
            closes="]<|tool_call_end|>",
        ),
    ),
)
