"""The shell blocks of the documents, and the simple commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
_BLOCK = re.compile(
    r"(?:^ *<!-- run by tests/shell: (?P<why>[^\n]+) -->\n)?"
    r"^(?P<indent> *)```(?P<kind>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Command(NamedTuple):
    """A simple command as words, without assignments, and the file that gets its output, if one does."""

    words: list[str]
    into: str | None


class Block(NamedTuple):
    """A fenced block of a page.

    Attributes:
        page: its path from the root of the repository.
        kind: the language.
        code: what is in it.
        why: why a shell block is run by `test_machine.py`; None: it is run by `tests/test_shell_blocks.py`.
    """

    page: str
    kind: str
    code: str
    why: str | None

    def commands(self) -> Iterator[Command]:
        """The simple commands of a shell block."""
        for line in self.code.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s(?:&&|\|)\s", re.sub(r"(^|\s+)#.*$", "", line)):
                before, _, into = part.partition(" > ")
                words = shlex.split(before)
                while words and re.match(r"[A-Z_]+=", words[0]):
                    words.pop(0)
                if words:
                    yield Command([Path(words[0]).name, *words[1:]], into.strip() or None)


def blocks(kind: str | None = None) -> Iterator[Block]:
    """The blocks of a kind, or all, in the order of the pages."""
    for page in PAGES:
        for found in _BLOCK.finditer(page.read_text()):
            if kind in (None, found["kind"]):
                yield Block(str(page.relative_to(ROOT)), found["kind"], found["code"], found["why"])
