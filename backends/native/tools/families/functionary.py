"""Functionary: a tag per call (v3.1), or recipients of which `all` is the reader (v3.2)."""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.family import CallFormat, Family

FUNCTIONARY = Family(
    name="functionary_v3_1",
    marks=("<function=example_function_name>",),
    calls=(CallFormat(trigger="<function=", head="<function=", middle=">", arguments=JSON, tail="</function>"),),
)

# The prompt ends with `>>>`, so the first recipient has none.
FUNCTIONARY_RECIPIENTS = Family(
    name="functionary_v3_2",
    marks=(">>>all",),
    calls=(
        CallFormat(middle="\n", arguments=JSON, between="\n>>>", at_start=True),
        CallFormat(trigger=">>>", head=">>>", middle="\n", arguments=JSON),
    ),
    text=("all\n", ""),
    dropped=(">>>all\n",),
)
