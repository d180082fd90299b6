"""Tools, tool choices and response formats of requests, decoded to the IR. Chats and responses share the rules."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.openai.dialects import Dialect
from adapters.openai.inbound.checks import missing, not_one_of, refused, too_long
from adapters.openai.words import FORMATS, TOOL_CHOICES, unknown_word
from schemas.errors import InvalidRequest
from schemas.ir import Grammar, Tool, ToolChoice
from schemas.openai import requests as wire
from schemas.openai import responses
from schemas.origin import Unread

_FUNCTION = "function"
_KNOWN_FORMATS = (*FORMATS, "json", "regex")
"""The types of `response_format` that are read here; the last two are TGI's."""


def read_tools(dialect: Dialect, tools: Sequence[wire.Tool | responses.Tool]) -> tuple[Tool, ...]:
    """The functions that the model may call, without the tools that `unread_tools` names.

    Raises:
        schemas.errors.InvalidRequest: there are too many, or one is incomplete or has too many properties.
    """
    limit = dialect.limits.max_tools
    if len(tools) > limit:
        raise too_long("tools", limit, len(tools))
    return tuple(_tool(dialect, tool, f"tools[{place}]") for place, tool in enumerate(tools) if tool.type == _FUNCTION)


def unread_tools(tools: Sequence[wire.Tool | responses.Tool]) -> tuple[Unread, ...]:
    """The tools that are no functions (OpenAI's own): only a server that is sent the body can offer them."""
    return tuple(
        Unread(f"tools[{place}].type", "tools", _unsupported(tool.type))
        for place, tool in enumerate(tools)
        if tool.type != _FUNCTION
    )


def read_tool_choice(
    choice: str | wire.ToolChoice | None, tools: tuple[Tool, ...], *, others: bool = False
) -> ToolChoice | None:
    """Which of `tools` a chat's model may or must call; None for a word that only a server of the dialect can know.

    Args:
        choice: the client's.
        tools: the functions.
        others: whether there are tools beside them, whose names are the business of a server that is sent the body.

    Raises:
        schemas.errors.InvalidRequest: there is no such choice, or no such tool.
    """
    if choice is None or (isinstance(choice, str) and choice not in TOOL_CHOICES):
        return None
    if others:
        return ToolChoice("auto")
    if isinstance(choice, str):
        return choice_of_keyword(choice, tools)
    if choice.type == "allowed_tools":
        if choice.allowed_tools is None:
            raise missing("tool_choice.allowed_tools")
        names = tuple(_name(tool.function, "tool_choice.allowed_tools.tools") for tool in choice.allowed_tools.tools)
        return choice_of_names("allowed_tools", names, choice.allowed_tools.mode, tools)
    if choice.type != "function":
        raise not_one_of("tool_choice.type", choice.type, ("function", "allowed_tools"))
    return choice_of_names("function", (_name(choice.function, "tool_choice"),), None, tools)


def choice_of_keyword(keyword: str, tools: tuple[Tool, ...]) -> ToolChoice | None:
    """The choice "none", "auto" or "required". None, the default, where "auto" has no tools.

    Raises:
        schemas.errors.InvalidRequest: another word, or "required" without tools.
    """
    if keyword == "required":
        if not tools:
            raise _without_tools()
        return ToolChoice("required")
    if keyword == "none":
        return ToolChoice("none")
    if keyword == "auto":
        # "auto" without tools asks for nothing; only "required" cannot be met.
        return ToolChoice("auto") if tools else None
    raise not_one_of("tool_choice", keyword, TOOL_CHOICES)


def choice_of_names(type: str, names: tuple[str, ...], mode: str | None, tools: tuple[Tool, ...]) -> ToolChoice:
    """The choice of one function (`type` "function"), or among several ("allowed_tools", of `mode` auto or required).

    Raises:
        schemas.errors.InvalidRequest: the request has no such tool.
    """
    if not tools:
        raise _without_tools()
    for name in names:
        # A choice of a tool that does not exist could never be met by the grammar that enforces it.
        if all(tool.name != name for tool in tools):
            raise refused("tool_choice", f"Tool choice '{name}' not found in 'tools' parameter.")
    return ToolChoice("named", names) if type == "function" else ToolChoice("allowed", names, mode == "required")


def read_response_format(given: wire.ResponseFormat | None) -> Grammar | None:
    """The constraint on the text; None is free text, or a format that only a server of the dialect can know.

    Raises:
        schemas.errors.InvalidRequest: the format's schema or pattern is missing.
    """
    if given is None or given.type == "text" or given.type not in _KNOWN_FORMATS:
        return None
    if given.type == "json_schema":
        if given.json_schema is None:
            raise missing("response_format.json_schema")
        return json_schema_grammar(given.json_schema, "response_format.json_schema")
    # OpenAI's JSON mode has no schema; TGI's form of the same type has one.
    if given.type == "json_object" and given.value is None:
        return Grammar("json_object")
    if given.type in ("json_object", "json"):  # TGI's: the schema is the `value`
        if not isinstance(given.value, dict):
            raise refused("response_format.value", "'response_format.value' must be a JSON schema.")
        return Grammar("json_schema", given.value)
    # TGI's "regex"
    if not isinstance(given.value, str):
        raise refused("response_format.value", "'response_format.value' must be a regular expression.")
    return Grammar("regex", given.value)


def unread_words(given: wire.GenerationRequest) -> tuple[Unread, ...]:
    """The choice of tools and the format of the text, where they are words that are not known here."""
    choice = given.tool_choice if isinstance(given, wire.ChatRequest) else None
    found: list[Unread] = []
    if isinstance(choice, str) and choice not in TOOL_CHOICES:
        found.append(unknown_word("tool_choice", "tool_choice", choice, TOOL_CHOICES))
    if given.response_format is not None and given.response_format.type not in _KNOWN_FORMATS:
        found.append(unknown_word("response_format.type", "response_format", given.response_format.type, FORMATS))
    return tuple(found)


def json_schema_grammar(given: wire.JsonSchema | responses.Format, param: str) -> Grammar:
    """The constraint by a JSON schema, which must have a name.

    Raises:
        schemas.errors.InvalidRequest: the name or the schema is missing.
    """
    if given.name is None:
        raise missing(f"{param}.name")
    if given.schema is None:
        raise missing(f"{param}.schema")
    return Grammar("json_schema", given.schema, given.name, given.strict)


def _tool(dialect: Dialect, tool: wire.Tool | responses.Tool, param: str) -> Tool:
    """A function. A chat nests its fields under `function`, a response does not."""
    function: wire.Function | responses.Tool
    if isinstance(tool, wire.Tool):
        param = f"{param}.function"
        if tool.function is None:
            raise missing(param)
        function = tool.function
    else:
        function = tool
    if function.name is None:
        raise missing(f"{param}.name")
    # A limit of Databricks' (15), at the top level of the schema only.
    properties = (function.parameters or {}).get("properties")
    limit = dialect.limits.max_properties
    if limit is not None and isinstance(properties, dict) and len(properties) > limit:
        param = f"{param}.parameters"
        raise refused(param, f"Invalid '{param}': {len(properties)} properties are more than the limit of {limit}.")
    return Tool(function.name, function.description, function.parameters, function.strict)


def _unsupported(type: str) -> str:
    return f"Tools of type '{type}' are not supported. Supported types are: 'function'."


def _name(function: wire.FunctionName | None, param: str) -> str:
    if function is None:
        raise missing(f"{param}.function")
    return function.name


def _without_tools() -> InvalidRequest:
    return refused("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
