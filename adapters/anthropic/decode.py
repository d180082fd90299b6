"""Request bodies decoded to the IR. The protocol always samples, unless the temperature is 0."""

from __future__ import annotations

from typing import Any, TypeVar

from adapters.anthropic.dialects import Dialect
from adapters.anthropic.messages import read_conversation
from adapters.anthropic.relay import read_known
from adapters.anthropic.without_effect import fields_without_effect, only_clears_thinking
from adapters.base import Call
from adapters.unknown_fields import Unknown
from schemas import anthropic as wire
from schemas.errors import InvalidRequest
from schemas.ir import SMALLEST_TOP_P, Generate, Grammar, Origin, Sampling, Stopping, Tokenize, Tool, ToolChoice
from schemas.origin import Unread

T = TypeVar("T", bound=wire.CountRequest)

_THINKING = ("adaptive", "between_tools", "disabled", "enabled")
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_TIERS = ("auto", "standard_only")
_OWN_FIELDS = ("mcp_servers", "container", "context_management", "inference_geo")

_MODES = {"auto": "auto", "none": "none", "any": "required", "tool": "named"}
"""A `type` of tool choice -> our mode."""


def read_messages(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Generate:
    """The request of `POST /v1/messages`.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
    """
    return read_given(dialect, *_read(dialect, body, wire.MessagesRequest), origin, call)


def read_given(
    dialect: Dialect,
    given: wire.MessagesRequest,
    extra: Unknown,
    unread: tuple[Unread, ...],
    origin: Origin,
    call: Call,
) -> Generate:
    """The request of a body that is decoded, with what of it is unknown or was set aside.

    Raises:
        schemas.errors.RequestError: it breaks a rule of the protocol.
    """
    _check(dialect, given)
    tools = _tools(dialect, given.tools or ())
    choice = _choice(given.tool_choice, tools, unread)
    # The field says the opposite of the IR's: `disable_parallel_tool_use`.
    parallel = given.tool_choice.disable_parallel_tool_use if given.tool_choice else None
    tier = {"service_tier": given.service_tier} if given.service_tier else {}
    return Generate(
        id=call.id,
        model=given.model,
        prompts=(read_conversation(given),),
        sampling=Sampling(
            do_sample=True,
            temperature=given.temperature,
            # 0 turns it off.
            top_k=given.top_k or None,
            top_p=SMALLEST_TOP_P if given.top_p == 0 else given.top_p,
        ),
        stopping=Stopping(max_new_tokens=given.max_tokens, stop=given.stop_sequences or ()),
        stream=bool(given.stream),
        # A stream of this protocol always has the usage, in `message_start` and `message_delta`.
        stream_usage=True,
        raw_prompt=False,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=None if parallel is None else not parallel,
        grammar=_grammar(given),
        user=given.metadata.user_id if given.metadata else None,
        hints=tier | _hints(given),
        extra=extra,
        unread=unread,
        unknown=extra.paths + fields_without_effect(given),
        origin=origin,
    )


def read_count(dialect: Dialect, body: bytes, origin: Origin, call: Call) -> Tokenize:
    """The request of `POST /v1/messages/count_tokens`, which counts the tools of a conversation, too.

    Raises:
        schemas.errors.RequestError: the body cannot be read or breaks a rule of the protocol.
    """
    given, extra, unread = _read(dialect, body, wire.CountRequest)
    _grammar(given)
    tools = _tools(dialect, given.tools or ())
    choice = _choice(given.tool_choice, tools, unread)
    # The chat template does not render tools that must not be called, so they cost no tokens.
    if choice is not None and choice.mode == "none":
        tools = ()
    return Tokenize(
        id=call.id,
        model=given.model,
        prompt=read_conversation(given),
        tools=tools,
        hints=_hints(given),
        unread=unread,
        unknown=extra.paths + fields_without_effect(given),
        origin=origin,
    )


def _read(dialect: Dialect, body: bytes, type: type[T]) -> tuple[T, Unknown, tuple[Unread, ...]]:
    """Decode a body; a strict dialect refuses unknown fields."""
    given, unknown, unread = read_known(body, type)
    unread += _own_fields(given) + _unknown_words(given)
    if unknown.paths and dialect.requests.strict:
        raise _invalid(min(unknown.paths), "Extra inputs are not permitted")
    return given, unknown, unread


def _own_fields(given: wire.CountRequest) -> tuple[Unread, ...]:
    """The fields that only a server of the client's own dialect can honour."""
    asked = [name for name in _OWN_FIELDS if getattr(given, name)]
    if given.context_management and only_clears_thinking(given.context_management):
        asked.remove("context_management")
    return tuple(Unread(name, name, f"{name}: this field is not supported") for name in asked)


def _unknown_words(given: wire.CountRequest) -> tuple[Unread, ...]:
    """The words that are not known here: a server of the client's own dialect may be newer, and others cannot obey."""
    thinking = given.thinking.get("type") if given.thinking else None
    effort = given.output_config.effort if given.output_config else None
    tier = given.service_tier if isinstance(given, wire.MessagesRequest) else None
    found: list[Unread] = []
    if given.thinking is not None and thinking not in _THINKING:
        found.append(Unread("thinking", "thinking", f"thinking: {_no_tag(thinking, _THINKING)}"))
    if given.tool_choice is not None and given.tool_choice.type not in _MODES:
        fault = _no_tag(given.tool_choice.type, tuple(sorted(_MODES)))
        found.append(Unread("tool_choice", "tool_choice", f"tool_choice: {fault}"))
    if effort is not None and effort not in _EFFORTS:
        words = "'low', 'medium', 'high', 'xhigh' or 'max'"
        found.append(
            Unread("output_config.effort", "reasoning_effort", f"output_config.effort: Input should be {words}")
        )
    if tier is not None and tier not in _TIERS:
        found.append(Unread("service_tier", "service_tier", "service_tier: Input should be 'auto' or 'standard_only'"))
    return tuple(found)


def _no_tag(given: object, known: tuple[str, ...]) -> str:
    """Anthropic's words for an object of an unknown type."""
    if given is None:
        return "Unable to extract tag using discriminator 'type'"
    tags = ", ".join(map(repr, known))
    return f"Input tag '{given}' found using 'type' does not match any of the expected tags: {tags}"


def _hints(given: wire.CountRequest) -> dict[str, Any]:
    """What is said of reasoning."""
    hints = {
        "thinking": given.thinking,
        "reasoning_effort": given.output_config.effort if given.output_config else None,
    }
    return {name: value for name, value in hints.items() if value}


def _grammar(given: wire.CountRequest) -> Grammar | None:
    """The constraint on the answer's text."""
    current = given.output_config.format if given.output_config else None
    format, field = (given.output_format, "output_format") if current is None else (current, "output_config.format")
    if format is None:
        return None
    if format.type != "json_schema":
        raise _invalid(f"{field}.type", "Input should be 'json_schema'")
    if format.schema is None:
        raise _invalid(f"{field}.schema", "Field required")
    return Grammar("json_schema", format.schema)


def _check(dialect: Dialect, given: wire.MessagesRequest) -> None:
    if given.max_tokens < 1:
        raise _invalid("max_tokens", "must be greater than or equal to 1")
    for field, high in (("temperature", dialect.limits.max_temperature), ("top_p", 1.0)):
        value = getattr(given, field)
        if value is not None and not 0 <= value <= high:
            raise _invalid(field, f"range: 0..{high:g}")
    if given.top_k is not None and given.top_k < 0:
        raise _invalid("top_k", "must be greater than or equal to 0")
    stops = given.stop_sequences or ()
    if len(stops) > dialect.limits.max_stops:
        raise _invalid("stop_sequences", f"at most {dialect.limits.max_stops} may be given")
    # Anthropic's rule and words.
    if any(not stop.strip() for stop in stops):
        raise _invalid("stop_sequences", "each stop sequence must contain non-whitespace")


def _tools(dialect: Dialect, tools: tuple[wire.Tool, ...]) -> tuple[Tool, ...]:
    if len(tools) > dialect.limits.max_tools:
        raise _invalid("tools", f"at most {dialect.limits.max_tools} may be given")
    for place, tool in enumerate(tools):
        if tool.input_schema is None:
            raise _invalid(f"tools.{place}.input_schema", "Field required")
    if len({tool.name for tool in tools}) < len(tools):
        raise _invalid("tools", "Tool names must be unique.")
    return tuple(Tool(tool.name, tool.description, tool.input_schema) for tool in tools)


def _choice(given: wire.ToolChoice | None, tools: tuple[Tool, ...], unread: tuple[Unread, ...]) -> ToolChoice | None:
    if given is None or given.type not in _MODES:
        return None
    # The tools that were set aside have names, too: a remote that is sent the body checks them.
    if any(part.param.startswith("tools.") for part in unread):
        return ToolChoice("auto")
    if not tools:
        raise _invalid("tool_choice", "tool_choice may only be specified while providing tools")
    if given.type != "tool":
        return ToolChoice(_MODES[given.type])  # type: ignore[arg-type]
    if given.name is None:
        raise _invalid("tool_choice.name", "Field required")
    if given.name not in {tool.name for tool in tools}:
        raise _invalid("tool_choice.name", f"Tool '{given.name}' not found in provided tools")
    return ToolChoice("named", (given.name,))


def _invalid(field: str, fault: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {fault}", param=field)
