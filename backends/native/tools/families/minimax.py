"""MiniMax M2: calls in one tag, each with a tag per parameter."""

from __future__ import annotations

from backends.native.tools.arguments.parameters import Parameters
from backends.native.tools.family import CallFormat, Family

MINIMAX = Family(
    name="minimax_m2",
    marks=("minimax:tool_call", "<invoke"),
    calls=(
        CallFormat(
            trigger="<minimax:tool_call>",
            opens="<minimax:tool_call>\n",
            head='<invoke name="',
            middle='">\n',
            arguments=Parameters('<parameter name="', '">', "</parameter>\n"),
            tail="</invoke>\n",
            closes="</minimax:tool_call>",
        ),
    ),
)
