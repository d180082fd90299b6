"""Request bodies to the internal form. The protocol always samples, unless the temperature is 0."""

from __future__ import annotations

from typing import Any

from adapters.anthropic.dialects import Dialect
from adapters.anthropic.messages import read_conversation
from adapters.base import Call
from adapters.body import read
from schemas import anthropic as wire
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import Generate, Origin, Sampling, Stopping, Tokenize, Tool, ToolChoice

SMALLEST_NUCLEUS = 1e-9
"""What `top_p: 0` means: the likeliest token alone. The internal form's interval is open there."""

_MODES = {"auto": "auto", "none": "none", "any": "required", "tool": "named"}


def read_question(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Generate:
    """A question.

    Raises:
        schemas.errors.RequestError: it is not one.
    """
    given, extra = read(body, wire.MessagesRequest)
    _check(dialect, given)
    tools = _tools(dialect, given.tools or ())
    choice = _choice(given.tool_choice, tools)
    parallel = given.tool_choice.disable_parallel_tool_use if given.tool_choice else None
    hints: dict[str, Any] = {"service_tier": given.service_tier} if given.service_tier else {}
    return Generate(
        id=call.id,
        model=given.model,
        prompts=(read_conversation(given),),
        sampling=Sampling(
            do_sample=True,
            temperature=given.temperature,
            top_k=given.top_k or None,
            top_p=SMALLEST_NUCLEUS if given.top_p == 0 else given.top_p,
        ),
        stopping=Stopping(max_new_tokens=given.max_tokens, stop=given.stop_sequences or ()),
        stream=bool(given.stream),
        stream_usage=True,
        raw_prompt=False,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=None if parallel is None else not parallel,
        user=given.metadata.user_id if given.metadata else None,
        hints=hints | ({"thinking": given.thinking} if given.thinking else {}),
        extra=extra,
        origin=origin,
    )


def read_count(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Tokenize:
    """A request for a prompt's length, that of its tools included.

    Raises:
        schemas.errors.RequestError: it is not one.
    """
    given, _ = read(body, wire.CountRequest)
    tools = _tools(dialect, given.tools or ())
    choice = _choice(given.tool_choice, tools)
    told = () if choice is not None and choice.mode == "none" else tools
    return Tokenize(id=call.id, model=given.model, prompt=read_conversation(given), tools=told, origin=origin)


def _check(dialect: Dialect, given: wire.MessagesRequest) -> None:
    if given.max_tokens < 1:
        raise _wrong("max_tokens", "must be greater than or equal to 1")
    for field, most in (("temperature", dialect.limits.max_temperature), ("top_p", 1.0)):
        value = getattr(given, field)
        if value is not None and not 0 <= value <= most:
            raise _wrong(field, f"range: 0..{most:g}")
    if given.top_k is not None and given.top_k < 0:
        raise _wrong("top_k", "must be greater than or equal to 0")
    stops = given.stop_sequences or ()
    if len(stops) > dialect.limits.max_stops:
        raise _wrong("stop_sequences", f"at most {dialect.limits.max_stops} may be given")
    if any(not stop.strip() for stop in stops):
        raise _wrong("stop_sequences", "each stop sequence must contain non-whitespace")


def _tools(dialect: Dialect, tools: tuple[wire.Tool, ...]) -> tuple[Tool, ...]:
    if len(tools) > dialect.limits.max_tools:
        raise _wrong("tools", f"at most {dialect.limits.max_tools} may be given")
    for place, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            message = f"tools.{place}.type: tools of type '{tool.type}' are not supported"
            raise UnsupportedFeature(message, feature="tools", param=f"tools.{place}.type")
        if tool.input_schema is None:
            raise _wrong(f"tools.{place}.input_schema", "Field required")
    return tuple(Tool(tool.name, tool.description, tool.input_schema) for tool in tools)


def _choice(given: wire.ToolChoice | None, tools: tuple[Tool, ...]) -> ToolChoice | None:
    if given is None:
        return None
    if given.type not in _MODES:
        raise _wrong("tool_choice.type", f"Input should be one of {', '.join(map(repr, _MODES))}")
    if not tools:
        raise _wrong("tool_choice", "tool_choice may only be specified while providing tools")
    if given.type != "tool":
        return ToolChoice(_MODES[given.type])  # type: ignore[arg-type]
    if given.name not in {tool.name for tool in tools}:
        raise _wrong("tool_choice.name", f"Tool '{given.name}' not found in provided tools")
    return ToolChoice("named", (given.name or "",))


def _wrong(field: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {why}", param=field)
