"""The table of families, and which of them a chat template is of."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from backends.native.tools.families.command import COMMAND, COMMAND_R
from backends.native.tools.families.deepseek import DEEPSEEK_V3, DEEPSEEK_V4, DEEPSEEK_V31, DEEPSEEK_V32
from backends.native.tools.families.functionary import FUNCTIONARY, FUNCTIONARY_RECIPIENTS
from backends.native.tools.families.gemma import FUNCTION_GEMMA, GEMMA_4, GEMMA_CODE
from backends.native.tools.families.glm import GLM
from backends.native.tools.families.harmony import HARMONY
from backends.native.tools.families.hermes import HERMES
from backends.native.tools.families.json_lists import (
    GRANITE,
    GRANITE_20B,
    HUNYUAN,
    INTERN,
    MINIMAX_1,
    NEMOTRON,
    PHI,
    PHI_WORD,
    XLAM,
)
from backends.native.tools.families.kimi import KIMI
from backends.native.tools.families.lfm import LFM
from backends.native.tools.families.llama import LLAMA_JSON, PYTHONIC
from backends.native.tools.families.minimax import MINIMAX
from backends.native.tools.families.mistral import MISTRAL, MISTRAL_LIST
from backends.native.tools.families.qwen_coder import QWEN_CODER, SEED
from backends.native.tools.family import Family, Reasoning

# The first row whose marks a template has: those with more marks come before those that share some of them.
FAMILIES = (
    HARMONY,
    KIMI,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    MISTRAL,
    MISTRAL_LIST,
    COMMAND,
    COMMAND_R,
    SEED,
    QWEN_CODER,
    FUNCTIONARY_RECIPIENTS,
    FUNCTIONARY,
    GEMMA_4,
    FUNCTION_GEMMA,
    GEMMA_CODE,
    LFM,
    MINIMAX,
    MINIMAX_1,
    HUNYUAN,
    GLM,
    GRANITE,
    GRANITE_20B,
    NEMOTRON,
    INTERN,
    PHI_WORD,
    PHI,
    XLAM,
    PYTHONIC,
    LLAMA_JSON,
    HERMES,
)

THINK = Family(name="think")
"""Reasoning in the usual tags, without calls of its own."""
GENERIC = "generic"
"""In place of a family's name: tools are listed, and calls are written, as `generic` says."""


BY_NAME = {family.name: family for family in (*FAMILIES, THINK)}


class AnswerForm(msgspec.Struct, frozen=True):
    """How one model's answers are written: a row with what the model has, and without what it does not have.

    `generic`: its chat template does not render tools, so they are rendered for it.
    """

    family: Family
    generic: bool = False

    @property
    def can_call(self) -> bool:
        """Whether the model can be offered tools."""
        return bool(self.family.calls)

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends with the tag that opens reasoning, so that the answer goes on with it."""
        reasoning = self.family.reasoning
        return reasoning is not None and prompt.rstrip().endswith(reasoning.opens.rstrip())

    def of_answer(self, *, to_chat: bool) -> Family:
        """The row for an answer: to a text that is no chat, models write text without tags around its parts."""
        return self.family if to_chat else replace(self.family, reasoning=None, text=("", ""), dropped=())


def find_form(
    template: str,
    tokens: Collection[str] = (),
    tool_format: str = "auto",
    reasoning_format: str = "auto",
    own: Family | None = None,
) -> AnswerForm:
    """How the model of a chat template writes its answers.

    Args:
        template: the template's source; of several, all of them.
        tokens: names of the tokenizer's added tokens.
        tool_format: the name of a family, "generic" or "none"; "auto" finds it.
        reasoning_format: the name of a family or "none"; "auto" finds it.
        own: the row that the model's own response template makes, which is taken if no other is found.
    """
    marked = next((family for family in FAMILIES if all(mark in template for mark in family.marks)), None)
    found = marked or _by_tokens(tokens)
    family = found or own or THINK
    # What a template does not know at all is rendered for it. A template with tools in a form that nobody here knows
    # would list them twice.
    generic = tool_format == GENERIC or (tool_format == "auto" and "tools" not in template)
    if generic:
        calls = HERMES.calls
    elif tool_format == "none":
        calls = ()
    else:
        calls = (family if tool_format == "auto" else BY_NAME[tool_format]).calls
    # What a model says of itself needs no other sign of it.
    known = own is not None and found is None and reasoning_format == "auto"
    reasoning = family.reasoning if known else _reasoning(family, template, tokens, reasoning_format)
    return AnswerForm(replace(family, calls=calls, reasoning=reasoning), generic)


def _by_tokens(tokens: Collection[str]) -> Family | None:
    """The family whose calls begin with one of the tokens: some templates leave it to the model how to write them."""
    names = set(tokens)
    return next((family for family in FAMILIES if names & {call.trigger for call in family.calls}), None)


def _reasoning(family: Family, template: str, tokens: Collection[str], wanted: str) -> Reasoning | None:
    if wanted == "none":
        return None
    if wanted != "auto":
        return BY_NAME[wanted].reasoning
    found = family.reasoning
    return found if found and any(tag in template or tag in tokens for tag in (found.opens, found.closes)) else None


def check_formats(tool_format: str, reasoning_format: str) -> None:
    """Check the options of these names.

    Raises:
        ValueError: one of them names no family; the text lists the names.
    """
    names = sorted(BY_NAME)
    for option, value, further in (
        ("tool_format", tool_format, ["auto", "none", GENERIC]),
        ("reasoning_format", reasoning_format, ["auto", "none"]),
    ):
        if value not in (*names, *further):
            raise ValueError(f"`{option}` is {value!r}; it must be one of {', '.join([*further, *names])}")
