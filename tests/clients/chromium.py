"""A headless Chromium driven through its debugging pipe: just enough to open a page and run JavaScript in it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LIMIT = 120  # seconds
T = TypeVar("T")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowRight": 39, "ArrowDown": 40}
"""Names of keys, and their codes on Windows, which Chromium goes by."""


_GONE = ("Node is detached", "No node", "content quads", "layout object", "does not belong")


class Gone(Exception):
    """The page has drawn a node anew, or hides it."""


class Page:
    """One page. `errors` are its console errors: exceptions, failed loads, blocked styles and scripts."""

    def __init__(self, read: int, write: int) -> None:
        self._in = os.fdopen(read, "rb")
        self._out = write
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self._choosers: list[int] = []

    def open(self, url: str) -> None:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "DOM", "Accessibility"):
            self._call(f"{domain}.enable")
        self._call("Page.setInterceptFileChooserDialog", enabled=True)
        self.go(url)

    def go(self, url: str) -> None:
        """Open another page in its place, or the same one again."""
        self._call("Page.navigate", url=url)

    @contextmanager
    def beforehand(self, script: str) -> Iterator[None]:
        """Run a script before those of every page that is opened meanwhile."""
        added = self._call("Page.addScriptToEvaluateOnNewDocument", source=script)
        yield
        self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        message = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in message, message
        return message["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of the expression once it is true."""
        return self.wait(lambda: self.run(script), script)

    def wait(self, look: Callable[[], T | None], what: str) -> T:
        """What `look` finds, once it finds something."""
        deadline = time.monotonic() + LIMIT
        while not (found := look()):
            assert time.monotonic() < deadline, (what, self.run("document.body.innerText"), self.errors)
            time.sleep(0.05)
        return found

    def show(self, width: int, height: int = 900, *, dark: bool = False, still: bool = False) -> None:
        """Have the page this size in CSS pixels, in light or dark, and `still` with motion reduced."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        motion = {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"}
        self._call("Emulation.setEmulatedMedia", features=[scheme, motion])

    def screenshot(self, path: Path) -> None:
        """Write an image of what is shown, in WebP or PNG by the name of the file."""
        kind = {"format": "webp", "quality": 82} if path.suffix == ".webp" else {"format": "png"}
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", **kind)["data"]))

    def press(self, key: str) -> None:
        """Press a key of `KEYS`."""
        text = {"Enter": "\r", " ": " "}.get(key)
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        for event in (down, {"type": "keyUp"}):
            self._call("Input.dispatchKeyEvent", **event, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self._call("Input.insertText", text=text)

    def drop(self, path: Path, selector: str) -> None:
        """Drop a file onto an element, as from a folder."""
        corner = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.run(f"(({{ x, y }}) => [x + 20, y + 20])({corner})")
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for type in ("dragEnter", "dragOver", "drop"):
            self._call("Input.dispatchDragEvent", type=type, x=x, y=y, data=data)

    def find(self, role: str, name: str) -> int | None:
        """The node that the accessibility tree has under a role and a name; None without one. Of several, the last."""
        root = self._call("DOM.getDocument", depth=0)["root"]["nodeId"]
        found = self._call("Accessibility.queryAXTree", nodeId=root, role=role, accessibleName=name)["nodes"]
        return next((node["backendDOMNodeId"] for node in reversed(found) if not node["ignored"]), None)

    def click(self, node: int) -> bool:
        """Click the middle of a node with the mouse; False if it is not shown."""
        self._call("DOM.scrollIntoViewIfNeeded", backendNodeId=node)
        quads = self._call("DOM.getContentQuads", backendNodeId=node)["quads"]
        if not quads:
            return False
        corners = quads[0]
        x, y = sum(corners[0::2]) / 4, sum(corners[1::2]) / 4
        for type in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=type, x=x, y=y, button="left", clickCount=1)
        return True

    def choose(self, node: int, option: str) -> bool:
        """Choose the option with this text in a select; False if it has none."""
        element = self._call("DOM.resolveNode", backendNodeId=node)["object"]["objectId"]
        script = """function(text) {
          const found = [...this.options].find((option) => option.text === text);
          if (!found) return false;
          this.value = found.value;
          for (const type of ["input", "change"]) this.dispatchEvent(new Event(type, { bubbles: true }));
          return true;
        }"""
        called = {"objectId": element, "functionDeclaration": script, "arguments": [{"value": option}]}
        return self._call("Runtime.callFunctionOn", **called, returnByValue=True)["result"]["value"]

    def give_file(self, path: Path) -> None:
        """Give a file to the page, which asks for one."""
        self.wait(lambda: self.run("true") and self._choosers, "a page that asks for a file")
        self._call("DOM.setFileInputFiles", files=[str(path)], backendNodeId=self._choosers.pop())

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (message := self._read()).get("id") != self._number:
            entry = message["params"].get("entry", {})
            if message["method"] == "Page.fileChooserOpened":
                self._choosers.append(message["params"]["backendNodeId"])
            if message["method"] == "Runtime.exceptionThrown" or entry.get("level") == "error":
                self.errors.append(json.dumps(message["params"]))
        if "error" in message and any(words in message["error"]["message"] for words in _GONE):
            raise Gone(message["error"]["message"])
        assert "error" not in message, message
        return message["result"]

    def _read(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "the browser ended"
            data += byte
        return json.loads(data)


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser of its own; `folder` is its profile."""
    commands, hears = os.pipe(), os.pipe()
    options = f"--headless --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe --user-data-dir={folder}"
    line = f"exec '{PATH}' {options} 3<&{commands[0]} 4>&{hears[1]}"
    process = subprocess.Popen(
        ["bash", "-c", line], pass_fds=(commands[0], hears[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(commands[0])
    os.close(hears[1])
    try:
        yield Page(hears[0], commands[1])
    finally:
        process.terminate()
        process.wait(LIMIT)
