"""How hard a model is to think: the hints of the protocols as variables of a chat template."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

EFFORT, THINKING = "reasoning_effort", "thinking"
_SWITCHES = ("enable_thinking", "thinking")
"""The names that templates have for a switch: Qwen, SmolLM and GLM; DeepSeek and Granite."""


def effort_variables(hints: Mapping[str, Any], variables: Collection[str]) -> dict[str, Any]:
    """The variables that a request's hints set.

    Args:
        hints: those of the request: OpenAI's `reasoning_effort`, Anthropic's `thinking`.
        variables: those that the template reads.
    """
    effort, thinking = hints.get(EFFORT), hints.get(THINKING)
    found: dict[str, Any] = {}
    if effort is not None and effort != "none" and EFFORT in variables:
        found[EFFORT] = effort
    switch = next((name for name in _SWITCHES if name in variables), None)
    if switch is not None and (effort is not None or isinstance(thinking, Mapping)):
        found[switch] = effort != "none" and not _is_off(thinking)
    return found


def without_effect(hints: Mapping[str, Any], own: Mapping[str, Any], variables: Collection[str]) -> tuple[str, ...]:
    """The hints, and the client's own variables (`own`), that the template does not read, by their place."""
    takes = bool({EFFORT, *_SWITCHES} & set(variables))
    # A model that cannot think does not think.
    asked = {name: hints.get(name) for name in (EFFORT, THINKING)}
    ignored = [name for name, value in asked.items() if not takes and value is not None and not _is_off(value)]
    return (*ignored, *(f"chat_template_kwargs.{name}" for name in own if name not in variables))


def _is_off(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "disabled"
