"""The images of the console in README and docs: `make screenshots`, or `python -m tests.clients.screenshots FOLDER`.

A gateway with a scripted backend is asked by users without a pause for half a minute, while a browser looks at it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import threading
import time
import urllib.error
from pathlib import Path

from tests.clients.chromium import browser
from tests.clients.conftest import serving
from tests.clients.console import Console, ask, fail, post

CONFIG = """
[server]
admin_keys_env = "CONSOLE_ADMIN_KEYS"
state_file = "{folder}/state.json"
[backends.s]
kind = "scripted"
[backends.s.scripts.long]
interval = 0.001
reasoning = "The user asks for a capital. That is a question of geography."
texts = [{long}]
[backends.s.scripts.short]
interval = 0.001
texts = ["The capital of France is Paris, on the Seine."]
[endpoints.chat]
served_entities = [
  {{ name = "base", backend = "s", model = "long", traffic_percentage = 55, price = {{ prompt = 1, completion = 2 }} }},
  {{ name = "candidate", backend = "s", model = "short", traffic_percentage = 45 }},
]
[endpoints.failing]
served_entities = [{{ name = "cut", backend = "s", model = "error-after-3" }}]
"""
LONG = """The capital of **France** is *Paris*.

- on the Seine
- 2.1 million people

| city | people |
|---|---|
| Paris | 2.1 M |
| Lyon | 0.5 M |

```python
print("Paris")
```
See [the city](https://example.org)."""
SECONDS = 40.0
_USERS = 8
_BLUR = "document.activeElement.blur()"


def main() -> None:
    """Take the images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where they are written")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gateway.toml").write_text(CONFIG.format(folder=folder, long=json.dumps(LONG)))
        options, keys = ("--config", str(folder / "gateway.toml")), {"CONSOLE_ADMIN_KEYS": "root"}
        with serving(folder / "log", *options, env=keys) as url, browser(folder / "tab") as page:
            end = time.monotonic() + SECONDS
            users = [threading.Thread(target=_use, args=(url, number, end)) for number in range(_USERS)]
            for user in users:
                user.start()
            console = Console(page)
            console.open(url)
            _take(console, url, given.folder, end)
            for user in users:
                user.join()
            assert page.errors == [], page.errors


def _take(console: Console, url: str, folder: Path, end: float) -> None:
    page = console.page
    ask(console, "chat:base", "What is the capital of France?")
    console.reads("Answered by")
    page.show(1200, 720)
    page.run(_BLUR)
    page.screenshot(folder / "console-chat.webp")

    fail(url)
    console.view("Requests")
    console.fill("Outcome", "not ok")
    page.until("document.querySelector('.log-table tbody button') !== null")
    page.run("document.querySelector('.log-table tbody button').click()")
    console.reads("Request id")
    page.run(_BLUR)
    page.screenshot(folder / "console-requests.webp")

    console.view("Live")
    time.sleep(max(0.0, end - time.monotonic() - 1.0))
    page.screenshot(folder / "console-live.webp")

    console.view("Experiments")
    console.reads("Compared with base")
    page.show(1200, 1000)
    time.sleep(1.0)  # charts follow the size
    page.screenshot(folder / "console-experiments.webp")


def _use(url: str, number: int, end: float) -> None:
    chosen = random.Random(number)
    while time.monotonic() < end:
        model = chosen.choices(["chat", "failing"], [20, 1])[0]
        question = [{"role": "user", "content": "What is the capital of France?"}]
        body = {"model": model, "stream": True, "user": f"{number}-{chosen.random()}", "messages": question}
        try:
            post(url, body)
        except urllib.error.URLError:
            return
        time.sleep(chosen.uniform(0.02, 0.1))


if __name__ == "__main__":
    os.umask(0o022)
    main()
