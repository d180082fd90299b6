"""The API's first form of tools: `functions`, `function_call` and messages of role `function`, rewritten as tools.

OpenAI deprecated it in favour of tools and still answers it. A request in this form is answered in this form.
"""

from __future__ import annotations

from msgspec.structs import replace

from adapters.openai.inbound.checks import missing, refused
from schemas.openai import requests as wire


def uses_functions(given: wire.ChatRequest) -> bool:
    """Whether a chat offers functions in the deprecated form."""
    return given.functions is not None or given.function_call is not None


def with_tools(given: wire.ChatRequest) -> wire.ChatRequest:
    """The chat with tools, tool calls and tools' results in place of functions, their calls and their results.

    Raises:
        schemas.errors.InvalidRequest: it has functions and tools, or a function's result has no name.
    """
    given = replace(given, messages=_messages(given.messages))
    if not uses_functions(given):
        return given
    if given.tools is not None or given.tool_choice is not None:
        raise refused("functions", "'functions' and 'function_call' cannot be combined with 'tools' or 'tool_choice'.")
    if not given.functions:
        raise refused("function_call", "'function_call' is only allowed when 'functions' are specified.")
    call = given.function_call
    if isinstance(call, wire.FunctionName) and call.name not in {function.name for function in given.functions}:
        raise refused("function_call", f"Function '{call.name}' not found in 'functions' parameter.")
    choice = call if call is None or isinstance(call, str) else wire.ToolChoice("function", call)
    tools = tuple(wire.Tool("function", function) for function in given.functions)
    # The form has room for one call only.
    return replace(
        given, tools=tools, tool_choice=choice, parallel_tool_calls=False, functions=None, function_call=None
    )


def _messages(messages: tuple[wire.ChatMessage, ...]) -> tuple[wire.ChatMessage, ...]:
    rewritten: list[wire.ChatMessage] = []
    id = ""
    for place, message in enumerate(messages):
        if message.function_call is not None:
            # Functions' calls have no ids, but tools' do: the next result is that of the last call.
            id = f"call_{place}"
            call = wire.ToolCall(id=id, function=message.function_call)
            rewritten.append(replace(message, function_call=None, tool_calls=(call,)))
        elif message.role == "function":
            if message.name is None:
                raise missing(f"messages[{place}].name")
            result = message.content or ""
            rewritten.append(replace(message, role="tool", content=result, tool_call_id=id or f"call_{place}"))
        else:
            rewritten.append(message)
    return tuple(rewritten)
