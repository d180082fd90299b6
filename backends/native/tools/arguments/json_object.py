"""Arguments as a JSON object, which is passed on as it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.native.grammar.schema_text import schema_text
from backends.native.tools.arguments.base import Arguments, ArgumentsReader, Step
from backends.native.tools.arguments.scanner import Scanner


class JsonArguments:
    """`{"city": "Paris"}`."""

    # The brace is the reader's: only an object can be passed on while it is written.
    begins = r"(?=\{)"
    literals = ""

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:  # noqa: ARG002 - the interface
        """See `Arguments`."""
        return _Reader()

    def grammar(self, rule: str, schema: dict[str, Any], tokens: Any, *, lenient: bool) -> list[str]:  # noqa: ARG002
        """See `Arguments`."""
        return [f"{rule}: %json {schema_text(schema, lenient=lenient)}"]


class _Reader:
    __slots__ = ("_scanner",)

    def __init__(self) -> None:
        self._scanner = Scanner()

    def read(self, text: str) -> Step:
        done = self._scanner.scan(text) is not None
        used, self._scanner.place = self._scanner.place, 0
        return Step(used, text[:used], done)

    def close(self) -> str:
        return ""


JSON: Arguments = JsonArguments()
