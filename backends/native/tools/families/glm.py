"""GLM 4.5 and later: the name in a tag, then a pair of tags per parameter."""

from __future__ import annotations

from backends.native.tools.arguments.parameters import Parameters
from backends.native.tools.family import CallFormat, Family

GLM = Family(
    name="glm4",
    marks=("<tool_call>", "<arg_key>"),
    calls=(
        CallFormat(
            trigger="<tool_call>",
            head="<tool_call>",
            middle="\n",
            # The name ends where the first parameter, or the call, begins.
            middle_pattern=r"\s*(?=<arg_key>|</tool_call>)",
            arguments=Parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
            tail="</tool_call>",
            between="\n",
        ),
    ),
)
