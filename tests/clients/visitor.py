"""Somebody who has never seen the console: finds what is there by role and name, as a screen reader does, and clicks.

There are no selectors here on purpose: what a visitor cannot find by its label, nobody can.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.clients.chromium import Gone, Page


class Visitor:
    """A visitor of the page."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def sees(self, text: str) -> None:
        """Wait until a text is shown."""
        self._page.until(f"document.body.innerText.includes({json.dumps(text)})")

    def no_longer_sees(self, text: str) -> None:
        self._page.until(f"!document.body.innerText.includes({json.dumps(text)})")

    def find(self, role: str, name: str) -> None:
        """Wait for the element of a role and a name."""
        self._use(role, name, lambda _: True)

    def click(self, role: str, name: str) -> None:
        self._use(role, name, self._page.click)

    def write(self, name: str, text: str, role: str = "textbox") -> None:
        """Write into the field of a name."""
        self.click(role, name)
        self._page.type(text)

    def choose(self, name: str, option: str) -> None:
        """Choose an option of a list, once it has it."""
        self._use("combobox", name, lambda node: self._page.choose(node, option))

    def attach(self, name: str, file: Path) -> None:
        """Click a button that asks for a file, and give it one."""
        self.click("button", name)
        self._page.give_file(file)

    def _use(self, role: str, name: str, act: Callable[[int], bool]) -> None:
        """Do something with the element of a role and a name, once it is there and that can be done."""

        def is_done() -> bool:
            with suppress(Gone):  # it is looked for again
                node = self._page.find(role, name)
                return node is not None and act(node)
            return False

        self._page.wait(is_done, f"{role} {name!r}")
