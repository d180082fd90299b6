"""Gemma: Gemma 3 writes Python's calls in a block of code, FunctionGemma and Gemma 4 a form of their own."""

from __future__ import annotations

from backends.native.tools.arguments.keywords import Keywords
from backends.native.tools.family import CallFormat, Family, Reasoning

GEMMA_CODE = Family(
    name="gemma3",
    marks=("```tool_code",),
    calls=(
        CallFormat(
            trigger="```tool_code",
            opens="```tool_code\n",
            middle="(",
            arguments=Keywords(),
            tail=")",
            between="\n",
            closes="\n```",
        ),
    ),
)


def _braces(opens: str, closes: str, quote: str) -> CallFormat:
    return CallFormat(
        trigger=opens,
        head=f"{opens}call:",
        middle="{",
        arguments=Keywords(assigns=":", separator=",", quote=quote, words=("true", "false", "null"), bare_keys=True),
        tail=f"}}{closes}",
    )


FUNCTION_GEMMA = Family(
    name="function_gemma",
    marks=("<start_function_call>",),
    calls=(_braces("<start_function_call>", "<end_function_call>", "<escape>"),),
)
GEMMA_4 = Family(
    name="gemma4",
    marks=("<|tool_call>", "<tool_call|>"),
    calls=(_braces("<|tool_call>", "<tool_call|>", '<|"|>'),),
    reasoning=Reasoning("<|channel>thought\n", "<channel|>"),
)
