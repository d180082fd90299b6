"""A headless Chromium driven through its debugging pipe: just enough to open a page and run JavaScript in it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LIMIT = 120  # seconds
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
"""Names of keys, and their codes on Windows, which Chromium goes by."""


class Page:
    """One page. `errors` are its console errors: exceptions, failed loads, blocked styles and scripts."""

    def __init__(self, read: int, write: int) -> None:
        self._in = os.fdopen(read, "rb")
        self._out = write
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []

    def open(self, url: str) -> None:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self._call(f"{domain}.enable")
        self._call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        message = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in message, message
        return message["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of the expression once it is true."""
        deadline = time.monotonic() + LIMIT
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, (script, self.run("document.body.innerText"), self.errors)
            time.sleep(0.05)
        return value

    def show(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Have the page this size in CSS pixels, in light or dark."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Write an image of what is shown, in WebP or PNG by the name of the file."""
        kind = {"format": "webp", "quality": 82} if path.suffix == ".webp" else {"format": "png"}
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", **kind)["data"]))

    def press(self, key: str) -> None:
        """Press a key that types nothing, such as Tab."""
        for type in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=type, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def type(self, text: str) -> None:
        """Type a text into what has the focus."""
        self._call("Input.insertText", text=text)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (message := self._read()).get("id") != self._number:
            entry = message["params"].get("entry", {})
            if message["method"] == "Runtime.exceptionThrown" or entry.get("level") == "error":
                self.errors.append(json.dumps(message["params"]))
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
