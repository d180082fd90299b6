"""The console in a browser, used as people use it: by the labels that they see or that a screen reader reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.clients.chromium import Page

AXE = Path(__file__).parent / "node/node_modules/axe-core/axe.min.js"

_HELPERS = """
window.shown = (element) => element.checkVisibility({ visibilityProperty: false });
window.named = (element) => (element.getAttribute("aria-label") || element.innerText || "").trim();
window.clickable = (name) => [...document.querySelectorAll("button, a, summary, [role=tab], [role=row]")]
  .filter(shown).findLast((element) => named(element) === name);
window.control = (name) => {
  for (const element of [...document.querySelectorAll("input, textarea, select")].filter(shown).reverse()) {
    const label = element.getAttribute("aria-label") || element.closest("label")?.firstElementChild?.innerText
      || document.querySelector(`label[for="${element.id}"]`)?.innerText || "";
    if (label.trim() === name) return element;
  }
};
true
"""

_FITS = """
[document.documentElement, document.querySelector("#view")].every((each) => each.scrollWidth <= each.clientWidth)
"""


class Console:
    """The page at `/ui`."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def open(self) -> None:
        self.page.open(f"{self.url}/ui")
        self.page.show(1400)
        self.page.until(
            "document.querySelectorAll('.nav a').length > 0 && document.querySelector('#view').children.length > 0"
        )
        self.page.run(_HELPERS)

    def click(self, name: str) -> None:
        """Click what has this label, once it is there and may be used."""
        found = f"clickable({json.dumps(name)})"
        self.page.until(f"!!{found} && !{found}.disabled")
        self.page.run(f"{found}.click()")

    def fill(self, name: str, value: str) -> None:
        """Write into the field with this label, or choose in it."""
        found = f"control({json.dumps(name)})"
        self.page.until(f"!!{found}")
        self.page.run(
            f"{{ const field = {found}; field.focus(); field.value = {json.dumps(value)};"
            "for (const type of ['input', 'change']) field.dispatchEvent(new Event(type, { bubbles: true })); }"
        )

    def press(self, name: str, key: str) -> None:
        """Press a key in the field with this label."""
        self.page.run(f"control({json.dumps(name)}).focus()")
        self.page.press(key)

    def text(self, selector: str = "#view") -> str:
        return self.page.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def reads(self, text: str, selector: str = "body") -> None:
        """Wait until a text is shown."""
        self.page.until(
            f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})"
        )

    def view(self, name: str) -> None:
        """Open a view by its link."""
        self.click(name)
        self.page.until(f"document.title.startsWith({json.dumps(name)})")

    def check_layout(self) -> None:
        """From phones to wide screens nothing is wider than the page, and axe finds no serious fault."""
        for width, dark in ((360, False), (768, True), (1400, False)):
            self.page.show(width, dark=dark)
            # Charts follow the width a frame later.
            self.page.until(_FITS)
            where = (self.page.run("location.hash"), width)
            faults = self.faults()
            assert not faults, (where, faults)
        self.page.show(1400)

    def faults(self) -> list[Any]:
        """The serious faults of accessibility that axe finds."""
        if not self.page.run("typeof axe === 'object'"):
            self.page.run(f"{AXE.read_text()}; true")
        # Colours are compared at rest.
        return self.page.run(
            "Promise.all(document.getAnimations().map((each) => each.finish()))"
            ".then(() => axe.run(document, { resultTypes: ['violations'] }))"
            ".then((found) => found.violations.filter((each) => ['serious', 'critical'].includes(each.impact))"
            ".map((each) => [each.id, each.nodes.map((node) => [node.html.slice(0, 200), node.failureSummary])]))"
        )
