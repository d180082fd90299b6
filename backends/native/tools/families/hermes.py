"""Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4 and many more: a JSON object in tags, once per call."""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.family import CallFormat, Family, member

_HEAD, _MIDDLE = member()

CALLS = CallFormat(
    trigger="<tool_call>",
    head=f"<tool_call>\n{_HEAD}",
    middle=_MIDDLE,
    arguments=JSON,
    tail="}\n</tool_call>",
    between="\n",
    in_object=True,
)
# Some write the arguments under the name that Llama has for them.
_PARAMETERS = CallFormat(
    trigger="<tool_call>",
    head=f"<tool_call>\n{_HEAD}",
    middle=member(arguments="parameters")[1],
    arguments=JSON,
    tail="}\n</tool_call>",
    in_object=True,
)

HERMES = Family(name="hermes", marks=("<tool_call>",), calls=(CALLS, _PARAMETERS))
