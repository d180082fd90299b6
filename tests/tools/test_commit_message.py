"""The rules for commit messages."""

from __future__ import annotations

import pytest

from tools.commit_message import faults

BODY = "\n\nThe reason stands here.\n"


@pytest.mark.parametrize(
    "message",
    [
        f"Count requests per endpoint{BODY}",
        f"{'x' * 60}".capitalize() + BODY,
        "Merge branch 'main' into next",
        f"Name the codecs{BODY}# a comment of git's\n",
    ],
)
def test_good_messages_pass(message: str) -> None:
    assert faults(message) == []


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("", "subject is empty"),
        (f"X{'x' * 60}{BODY}", "61 characters"),
        (f"Count requests.{BODY}", "ends with a period"),
        (f"count requests{BODY}", "lower-case"),
        ("Count requests\nat once\n\nBody.", "not empty"),
        ("Count requests\n", "no body"),
        ("Count requests\n\n# only a comment\n", "no body"),
        (f"Count requests\n\n{'x' * 101}\n", "more than 100"),
    ],
)
def test_each_rule_is_reported(message: str, rule: str) -> None:
    assert any(rule in fault for fault in faults(message))
