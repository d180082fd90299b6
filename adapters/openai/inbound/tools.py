"""Tools, the choice between them, and response formats to the internal form."""

from __future__ import annotations

from typing import Any

from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import missing, not_one_of, refused, too_long
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import Grammar, Tool, ToolChoice
from schemas.openai import requests as wire


def read_tools(dialect: Dialect, tools: tuple[wire.Tool, ...]) -> tuple[Tool, ...]:
    """The functions that may be called.

    Raises:
        schemas.errors.InvalidRequest: too many, or not of a form that the protocol has.
    """
    if len(tools) > dialect.limits.max_tools:
        raise too_long("tools", dialect.limits.max_tools, len(tools))
    return tuple(_tool(dialect, tool, f"tools[{place}]") for place, tool in enumerate(tools))


def read_tool_choice(choice: str | wire.ToolChoice | None, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """Which of `tools` may or must be called.

    Raises:
        schemas.errors.InvalidRequest: no such choice.
    """
    if choice is None:
        return None
    if isinstance(choice, str):
        return _keyword(choice, tools)
    if choice.type == "allowed_tools":
        if choice.allowed_tools is None:
            raise missing("tool_choice.allowed_tools")
        names = tuple(_name(tool.function, "tool_choice.allowed_tools.tools") for tool in choice.allowed_tools.tools)
        return ToolChoice("allowed", _offered(names, tools), required=choice.allowed_tools.mode == "required")
    if choice.type != "function":
        raise not_one_of("tool_choice.type", choice.type, ("function", "allowed_tools"))
    return ToolChoice("named", _offered((_name(choice.function, "tool_choice"),), tools))


def read_response_format(given: wire.ResponseFormat | None) -> Grammar | None:
    """The constraint on the text.

    Raises:
        schemas.errors.InvalidRequest: no such format, or it lacks its schema.
    """
    if given is None or given.type == "text":
        return None
    if given.type == "json_schema":
        return _json_schema(given.json_schema)
    if given.type == "json_object" and given.value is None:
        return Grammar("json_object")
    if given.type in ("json_object", "json"):  # with a `value`: TGI's
        if not isinstance(given.value, dict):
            raise refused("response_format.value", "'response_format.value' must be a JSON schema.")
        return Grammar("json_schema", given.value)
    if given.type == "regex":  # TGI's
        if not isinstance(given.value, str):
            raise refused("response_format.value", "'response_format.value' must be a regular expression.")
        return Grammar("regex", given.value)
    raise not_one_of("response_format.type", given.type, ("text", "json_object", "json_schema"))


def _tool(dialect: Dialect, tool: wire.Tool, where: str) -> Tool:
    if tool.type != "function":
        message = f"Tools of type '{tool.type}' are not supported. Supported types are: 'function'."
        raise UnsupportedFeature(message, feature="tools", param=f"{where}.type")
    function = tool.function
    if function is None:
        raise missing(f"{where}.function")
    check_properties(dialect, function.parameters, f"{where}.function.parameters")
    return Tool(function.name, function.description, function.parameters, function.strict)


def check_properties(dialect: Dialect, parameters: dict[str, Any] | None, where: str) -> None:
    """Refuse a tool of too many properties, where a dialect has a limit.

    Raises:
        schemas.errors.InvalidRequest: `param` is `where`.
    """
    properties = (parameters or {}).get("properties")
    limit = dialect.limits.max_properties
    if limit is not None and isinstance(properties, dict) and len(properties) > limit:
        message = f"Invalid '{where}': {len(properties)} properties are more than the limit of {limit}."
        raise refused(where, message)


def _keyword(choice: str, tools: tuple[Tool, ...]) -> ToolChoice | None:
    if choice == "required":
        if not tools:
            raise _without_tools()
        return ToolChoice("required")
    if choice == "none":
        return ToolChoice("none")
    if choice == "auto":
        return ToolChoice("auto") if tools else None
    raise not_one_of("tool_choice", choice, ("none", "auto", "required"))


def _offered(names: tuple[str, ...], tools: tuple[Tool, ...]) -> tuple[str, ...]:
    if not tools:
        raise _without_tools()
    for name in names:
        if all(tool.name != name for tool in tools):
            raise refused("tool_choice", f"Tool choice '{name}' not found in 'tools' parameter.")
    return names


def _name(function: wire.FunctionName | None, where: str) -> str:
    if function is None:
        raise missing(f"{where}.function")
    return function.name


def _without_tools() -> InvalidRequest:
    return refused("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")


def _json_schema(given: wire.JsonSchema | None) -> Grammar:
    where = "response_format.json_schema"
    if given is None:
        raise missing(where)
    if given.name is None:
        raise missing(f"{where}.name")
    if given.schema is None:
        raise missing(f"{where}.schema")
    return Grammar("json_schema", given.schema, given.name, given.strict)
