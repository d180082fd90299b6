"""Mistral: one list of calls behind a token, or since 2025 the token, a name and the arguments for each call."""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.family import CallFormat, Family, Reasoning, member

_HEAD, _MIDDLE = member()
_THINK = Reasoning("[THINK]", "[/THINK]")

LIST = CallFormat(
    trigger="[TOOL_CALLS]",
    opens="[TOOL_CALLS][",
    head=_HEAD,
    middle=_MIDDLE,
    arguments=JSON,
    tail="}",
    between=", ",
    closes="]",
    in_object=True,
)
NAMED = CallFormat(
    trigger="[TOOL_CALLS]",
    head="[TOOL_CALLS]",
    middle="[ARGS]",
    # Some write an id behind the name, the oldest nothing at all.
    middle_pattern=r"(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*",
    arguments=JSON,
)

MISTRAL = Family(name="mistral", marks=("[TOOL_CALLS]", "[ARGS]"), calls=(NAMED, LIST), reasoning=_THINK)
MISTRAL_LIST = Family(name="mistral_list", marks=("[TOOL_CALLS]",), calls=(LIST, NAMED), reasoning=_THINK)
