"""Which tools an answer may call, how often, and whether it must."""

from __future__ import annotations

from schemas.ir import Generate, Tool

_MAX_CALLS = 16
"""Per answer; the grammar allows no more, and the reader drops further calls."""


def offered_tools(request: Generate) -> tuple[Tool, ...]:
    """The tools that are shown to the model."""
    choice = request.tool_choice
    if choice is None or choice.mode in ("auto", "required", "named"):
        return request.tools
    return tuple(tool for tool in request.tools if tool.name in choice.names)  # mode "none" names none


def callable_tools(request: Generate) -> tuple[Tool, ...]:
    """The tools that may be called: of the offered ones those that are named, if some are."""
    choice = request.tool_choice
    offered = offered_tools(request)
    named = choice is not None and choice.mode == "named"
    return tuple(tool for tool in offered if tool.name in choice.names) if choice and named else offered


def max_calls(request: Generate) -> int:
    """The number of calls that an answer may have."""
    named = request.tool_choice is not None and request.tool_choice.mode == "named"
    return 1 if named or request.parallel_tool_calls is False else _MAX_CALLS


def must_call(request: Generate) -> bool:
    """Whether a tool must be called."""
    choice = request.tool_choice
    return choice is not None and (choice.mode in ("required", "named") or choice.required)


def is_free(request: Generate) -> bool:
    """Whether an answer with tools may be any text: no call is required, no tool is strict, no format is asked for."""
    return not (
        must_call(request) or request.grammar is not None or any(tool.strict for tool in offered_tools(request))
    )
