"""The console in a browser, used as people use it: by the labels that they see or that a screen reader reads."""

from __future__ import annotations

import itertools
import json
import struct
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.clients.chromium import PATH, Page
from tests.missing_tools import missing

AXE = Path(__file__).parent / "node/node_modules/axe-core/axe.min.js"
MARKS = [
    pytest.mark.clients,
    pytest.mark.skipif(PATH is None, reason=missing("chromium")),
    pytest.mark.skipif(not AXE.exists(), reason=missing("npm packages of tests/clients/node")),
]
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>[click](javascript:window.hacked=1)"
CONFIG = """
[server]
admin_keys_env = "CONSOLE_ADMIN_KEYS"
state_file = "{folder}/state.json"
[usage]
database = "{folder}/usage.sqlite3"
text = true

[backends.s]
kind = "scripted"
[backends.s.scripts.rich]
reasoning = "A question of geography."
texts = ["The capital of **France** is *Paris*.\\n\\n```python\\nprint(1)\\n```\\n| a | b |\\n|---|---|\\n| 1 | 2 |"]
[backends.s.scripts.hostile]
texts = [{hostile}]
[backends.s.scripts.endless]
texts = ["again and "]
repeat = 1000
interval = 0.01

[endpoints.chat]
served_entities = [
  {{ name = "base", backend = "s", model = "rich", traffic_percentage = 60, price = {{ prompt = 1, completion = 2 }} }},
  {{ name = "candidate", backend = "s", model = "scripted", traffic_percentage = 40 }},
]
[endpoints.ramped]
served_entities = [
  {{ name = "old", backend = "s", model = "scripted" }},
  {{ name = "new", backend = "s", model = "scripted", traffic_percentage = 0 }},
]
experiment = {{ ramp = {{ arm = "new", steps = [5, 50] }} }}
[endpoints.echo]
served_entities = [{{ name = "only", backend = "s", model = "echo" }}]
[endpoints.hostile]
served_entities = [{{ name = "evil", backend = "s", model = "hostile" }}]
[endpoints.endless]
served_entities = [{{ name = "slow", backend = "s", model = "endless" }}]
[endpoints.failing]
served_entities = [{{ name = "cut", backend = "s", model = "error-after-3" }}]
[endpoints.tools]
served_entities = [{{ name = "caller", backend = "s", model = "tool-call" }}]
"""

_HELPERS = """
window.shown = (element) => element.checkVisibility({ visibilityProperty: false });
window.named = (element) => (element.getAttribute("aria-label") || element.innerText || "").trim();
window.clickable = (name) => [...document.querySelectorAll("button, a, summary, [role=tab], [role=row]")]
  .filter(shown).findLast((element) => named(element) === name);
window.choose = (select, text) => {
  const found = [...select.options].find((option) => [option.text, option.value].includes(text));
  if (found) select.value = found.value;
  return Boolean(found);
};
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

    def __init__(self, page: Page) -> None:
        self.page = page
        self.url = ""

    def open(self, url: str) -> None:
        """Open the console of a server, in a tab of its own the first time."""
        (self.page.go if self.url else self.page.open)(f"{url}/ui")
        self.url = url
        self.page.show(1400)
        self.ready()

    def ready(self) -> None:
        """Wait until the page is there."""
        self.page.until(
            "document.querySelectorAll('.nav a').length > 0 && document.querySelector('#view').children.length > 0"
        )
        self.page.run(_HELPERS)

    def click(self, name: str) -> None:
        """Click what has this label, once it is there and may be used."""
        # In one step: the page may draw it anew between two.
        found = f"clickable({json.dumps(name)})"
        self.page.until(f"((found) => !!found && !found.disabled && (found.click(), true))({found})")

    def fill(self, name: str, value: str) -> None:
        """Write into the field with this label, or choose in it."""
        found, text = f"control({json.dumps(name)})", json.dumps(value)
        self.page.until(
            f"((field) => {{ if (!field || (field.tagName === 'SELECT' && !choose(field, {text}))) return false;"
            f"field.focus(); if (field.tagName !== 'SELECT') field.value = {text};"
            "for (const type of ['input', 'change']) field.dispatchEvent(new Event(type, { bubbles: true }));"
            f"return true; }})({found})"
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
        """From phones to wide screens, in light and dark, nothing is wider than the page, and axe finds no serious
        fault.
        """
        for width, dark in itertools.product((360, 768, 1400), (False, True)):
            self.page.show(width, dark=dark)
            # Charts follow the width a frame later.
            self.page.until(_FITS)
            where = (self.page.run("location.hash"), width, "dark" if dark else "light")
            # A theme changes colours, and nothing else.
            faults = self.faults(colours_only=dark)
            assert not faults, (where, faults)
        self.page.show(1400)

    def faults(self, *, colours_only: bool = False) -> list[Any]:
        """The serious faults of accessibility that axe finds, of all kinds or of colours."""
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if colours_only:
            # Those of AA; no style sheet need be read again for them.
            options |= {"runOnly": ["color-contrast", "link-in-text-block"], "preload": False}
        if not self.page.run("typeof axe === 'object'"):
            self.page.run(f"{AXE.read_text()}; true")
        # Colours are compared at rest.
        return self.page.run(
            "Promise.all(document.getAnimations().map((each) => each.finish()))"
            f".then(() => axe.run(document, {json.dumps(options)}))"
            ".then((found) => found.violations.filter((each) => ['serious', 'critical'].includes(each.impact))"
            ".map((each) => [each.id, each.nodes.map((node) => [node.html.slice(0, 200), node.failureSummary])]))"
        )


def post(url: str, body: dict[str, Any]) -> str:
    """Ask without the page; returns the request's id."""
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as answer:
        answer.read()
        return answer.headers["x-request-id"]


def log_in(console: Console, key: str) -> None:
    console.click("Log in")
    console.fill("API key", key)
    console.click("Log in")
    console.reads("Log out", ".who")


def log_out(console: Console) -> None:
    console.click("Log out")
    console.reads("Log in", ".who")


def ask(console: Console, endpoint: str, text: str) -> None:
    console.view("Chat")
    console.click("New conversation")
    console.fill("Endpoint", endpoint)
    console.fill("Message", text)
    console.click("Send")


def fail(url: str) -> None:
    """Have a request fail in its stream."""
    post(url, {"model": "failing", "messages": [{"role": "user", "content": "Hi"}], "stream": True})


def image_file(folder: Path) -> Path:
    """The file of a red square, in PNG."""
    side, red = 96, b"\xd0\x20\x20"
    rows = zlib.compress(b"".join(b"\0" + red * side for _ in range(side)))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")]
    written = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    ]
    file = folder / "image.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(written))
    return file
