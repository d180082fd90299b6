"""What is written to a terminal: log lines for people, and texts of others without what a terminal would obey."""

from __future__ import annotations

import os
import re
from typing import Any

import structlog

# C0 and DEL, C1, and the invisible ones that reorder or hide what is shown around them: Unicode's Bidi_Control,
# zero-width characters, line and paragraph separators, the byte order mark. Tab and line feed stay: a trace has them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


def escape_controls(text: str) -> str:
    """A text without what a terminal would obey, or what reorders or hides text on it."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaping() -> tuple[Any, ...]:
    """The processors of structlog that make every value of an event safe to show."""
    # In this order: an exception's text may come from a client, too.
    return structlog.processors.format_exc_info, _escape_values


def renderer() -> structlog.dev.ConsoleRenderer:
    """What makes a line of an event, in colors unless NO_COLOR is set."""
    return structlog.dev.ConsoleRenderer(
        colors=not os.environ.get("NO_COLOR"),  # https://no-color.org
        # structlog's default (rich) prints local variables, and so prompts.
        exception_formatter=structlog.dev.plain_traceback,
    )


def _escape_values(_: Any, __: str, event: Any) -> Any:
    """Escape values: names of models and hosts come from clients and upstreams."""
    for name, value in event.items():
        # Of other values the renderer shows the `repr`, which escapes most of these, but not all.
        if not isinstance(value, bool | int | float | None):
            text = value if isinstance(value, str) else repr(value)
            escaped = escape_controls(text)
            if escaped is not text:
                event[name] = escaped
    return event
