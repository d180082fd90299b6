"""The interface of the ways to write arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Step(NamedTuple):
    """What a reader made of undecided text: characters used, JSON to pass on, whether the arguments are complete."""

    used: int
    json: str
    done: bool = False


class ArgumentsReader(Protocol):
    """Reads the arguments of one call while they are written."""

    def read(self, text: str) -> Step:
        """Take the text that has not been used yet. Its unused rest comes again, with more behind it."""
        ...

    def close(self) -> str:
        """The JSON that completes arguments whose text has ended before them; "" where nobody can tell."""
        ...


class Arguments(Protocol):
    """A way to write arguments.

    `begins` is a pattern (usually a lookahead) of what must follow the literal before the arguments; `literals` holds
    the markup within them, as one text.
    """

    @property
    def begins(self) -> str:
        """See above."""
        ...

    @property
    def literals(self) -> str:
        """See above."""
        ...

    def reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        """A reader for the arguments of a function with parameters of this schema."""
        ...

    def grammar(self, rule: str, schema: dict[str, Any], tokens: Any, *, lenient: bool) -> list[str]:
        """Lines of Lark that define `rule`: the arguments by the schema.

        Args:
            rule: the name of the rule. Further rules that it needs have names that begin with it.
            schema: JSON schema of an object, within the limits.
            tokens: the `Tags` of the tokenizer.
            lenient: whether keywords that cannot hold are ignored.
        """
        ...
