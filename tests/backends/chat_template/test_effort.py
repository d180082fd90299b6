"""How hard a model is to think, as templates take it."""

from __future__ import annotations

from typing import Any

import pytest

from backends.chat_template.effort import effort_variables, without_effect


@pytest.mark.parametrize(
    ("hints", "variables", "found"),
    [
        ({"reasoning_effort": "high"}, ["reasoning_effort"], {"reasoning_effort": "high"}),
        ({"reasoning_effort": "low"}, ["enable_thinking"], {"enable_thinking": True}),
        ({"reasoning_effort": "none"}, ["enable_thinking", "reasoning_effort"], {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, ["thinking"], {"thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, ["enable_thinking"], {"enable_thinking": True}),
        ({"reasoning_effort": "low"}, ["messages"], {}),
        ({}, ["enable_thinking"], {}),
    ],
)
def test_hints_become_variables(hints: dict[str, Any], variables: list[str], found: dict[str, Any]) -> None:
    assert effort_variables(hints, variables) == found


def test_what_the_template_does_not_read_has_no_effect() -> None:
    hints = {"reasoning_effort": "low", "service_tier": "auto"}
    assert without_effect(hints, {}, ["messages"]) == ("reasoning_effort",)
    assert without_effect(hints, {"a": 1, "b": 1}, ["enable_thinking", "a"]) == ("chat_template_kwargs.b",)
