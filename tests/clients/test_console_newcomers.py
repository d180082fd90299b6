"""What newcomers do in the console, by visible labels alone.

They also ask with an image (`test_console_native.py`) and revoke a key (`test_console_keys.py`), on other servers.
"""

from __future__ import annotations

from tests.clients.console import MARKS, Console, fail
from tests.clients.visitor import Visitor

pytestmark = MARKS


def test_find_why_a_request_failed(console: Console, console_url: str) -> None:
    fail(console_url)
    me = Visitor(console.page)
    me.click("link", "Requests")
    me.choose("Outcome", "not ok")
    me.choose("Endpoint", "failing")
    me.click("button", "Pause")
    me.click("button", console.page.until(_LINE))
    me.sees("The scripted backend was configured to fail: error.")
    me.sees("while the backend's answer came")
    me.click("button", "Close")


_LINE = "[...document.querySelectorAll('button')].map(named).find((name) => name.startsWith('Request of ')) ?? ''"
"""The name of the newest request's button, which has the time in it."""


def test_compare_two_models(console: Console) -> None:
    me = Visitor(console.page)
    me.click("link", "Compare")
    me.choose("Endpoint A", "chat → base")
    me.choose("Endpoint B", "chat → candidate")
    me.click("button", "Ask all")
    me.sees("Words as in A")


def test_start_a_ramp(console: Console) -> None:
    me = Visitor(console.page)
    me.click("button", "Log in")
    me.write("API key", "root")
    me.click("button", "Log in")
    me.click("link", "Experiments")
    me.choose("Endpoint", "ramped")
    me.click("button", "Start the ramp")
    me.click("button", "Start: the arm begins without traffic, and the figures begin anew")
    me.sees("The ramp was started.")
    me.sees("started the ramp again")
    me.click("button", "Dismiss")
    me.click("button", "Log out")
    me.find("button", "Log in")
