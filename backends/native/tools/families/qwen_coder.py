"""Qwen3-Coder, Qwen 3.5 and Seed-OSS: a tag per function and one per parameter."""

from __future__ import annotations

from backends.native.tools.arguments.parameters import Parameters
from backends.native.tools.family import CallFormat, Family, Reasoning

QWEN_CODER = Family(
    name="qwen3_coder",
    marks=("<tool_call>", "<function=", "<parameter="),
    calls=(
        CallFormat(
            trigger="<tool_call>",
            head="<tool_call>\n<function=",
            middle=">\n",
            arguments=Parameters("<parameter=", ">\n", "\n</parameter>\n"),
            tail="</function>\n</tool_call>",
            between="\n",
        ),
    ),
)

SEED = Family(
    name="seed_oss",
    marks=("<seed:tool_call>",),
    calls=(
        CallFormat(
            trigger="<seed:tool_call>",
            head="<seed:tool_call>\n<function=",
            middle=">\n",
            arguments=Parameters("<parameter=", ">", "</parameter>\n"),
            tail="</function>\n</seed:tool_call>",
            between="\n",
        ),
    ),
    reasoning=Reasoning("<seed:think>", "</seed:think>"),
)
