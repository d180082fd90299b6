"""Somebody who has never seen the console: finds what is there by role and name, as a screen reader does, and clicks.

There are no selectors here on purpose: what a visitor cannot find by its label, nobody can.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients.chromium import Page


class Visitor:
    """A visitor of the page."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def sees(self, text: str) -> None:
        """Wait until a text is shown."""
        self._page.until(f"document.body.innerText.includes({json.dumps(text)})")

    def no_longer_sees(self, text: str) -> None:
        self._page.until(f"!document.body.innerText.includes({json.dumps(text)})")

    def find(self, role: str, name: str) -> int:
        """Wait for the element of a role and a name."""
        return self._page.wait(lambda: self._page.find(role, name), f"{role} {name!r}")

    def click(self, role: str, name: str) -> None:
        self._page.click(self.find(role, name))

    def write(self, name: str, text: str, role: str = "textbox") -> None:
        """Write into the field of a name."""
        self.click(role, name)
        self._page.type(text)

    def choose(self, name: str, option: str) -> None:
        """Choose an option of a list, once it has it."""
        self._page.wait(lambda: self._page.choose(self.find("combobox", name), option), f"{name} {option!r}")

    def attach(self, name: str, file: Path) -> None:
        """Click a button that asks for a file, and give it one."""
        self.click("button", name)
        self._page.give_file(file)
