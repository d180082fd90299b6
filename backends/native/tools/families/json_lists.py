"""Granite 3, Phi-4-mini, Nemotron Nano, Hunyuan, MiniMax M1, xLAM: JSON objects, most of them in one list, in a tag."""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.family import CallFormat, Family, member

_HEAD, _MIDDLE = member()


def _calls(
    opens: str, closes: str = "", *, trigger: str = "", between: str = ", ", at_start: bool = False
) -> CallFormat:
    return CallFormat(
        trigger=trigger,
        opens=opens,
        head=_HEAD,
        middle=_MIDDLE,
        arguments=JSON,
        tail="}",
        between=between,
        closes=closes,
        in_object=True,
        at_start=at_start,
    )


_TOKEN = _calls("<|tool_call|>[", "]", trigger="<|tool_call|>")

# Granite 3.3 writes its answers in tags of their own when it thinks. Granite 4 writes calls as Hermes does.
GRANITE = Family(
    name="granite",
    marks=("<|tool_call|>", "<|start_of_role|>"),
    calls=(_TOKEN, _calls("<tool_call>[", "]", trigger="<tool_call>")),
    dropped=("<response>", "</response>"),
)
GRANITE_20B = Family(
    name="granite_20b_fc",
    marks=("<function_call>", "<|function_call_library|>"),
    calls=(_calls("<function_call> ", trigger="<function_call>", between="\n<function_call> "),),
)

_PHI = _calls("<|tool_call|>[", "]<|/tool_call|>", trigger="<|tool_call|>")
_FUNCTOOLS = _calls("functools[", "]", trigger="functools[")
PHI_WORD = Family(name="phi4_functools", marks=("functools[",), calls=(_FUNCTOOLS, _PHI))
PHI = Family(name="phi4_mini", marks=("<|tool|>", "<|/tool|>"), calls=(_PHI, _FUNCTOOLS))

NEMOTRON = Family(
    name="nemotron_nano_v2",
    marks=("<TOOLCALL>",),
    calls=(_calls("<TOOLCALL>[", "]</TOOLCALL>", trigger="<TOOLCALL>"),),
)

_HUNYUAN = _calls("<tool_calls>[", "]</tool_calls>", trigger="<tool_calls>")
_MINIMAX_1 = _calls("<tool_calls>\n", "\n</tool_calls>", trigger="<tool_calls>", between="\n")
HUNYUAN = Family(
    name="hunyuan_a13b",
    marks=("<tool_calls>[", "</tool_calls>"),
    calls=(_HUNYUAN, _MINIMAX_1),
    dropped=("<answer>", "</answer>"),
)
MINIMAX_1 = Family(name="minimax_m1", marks=("<tool_calls>", "</tool_calls>"), calls=(_MINIMAX_1, _HUNYUAN))

INTERN = Family(
    name="internlm2",
    marks=("<|action_start|>", "<|plugin|>"),
    calls=(
        _calls(
            "<|action_start|><|plugin|>\n",
            "<|action_end|>",
            trigger="<|action_start|><|plugin|>",
            between="<|action_end|><|action_start|><|plugin|>\n",
        ),
    ),
)

XLAM = Family(name="xlam", marks=('[{"name": "tool_call_name"',), calls=(_calls("[", "]", at_start=True),))
