"""The console with the keyboard alone: Tab reaches all that can be used, the focus is seen, and it is never lost."""

from __future__ import annotations

import pytest

from tests.clients.console import MARKS, Console, fail

pytestmark = MARKS

_FOCUS = """
(() => {
  const at = document.activeElement;
  if (!at || at === document.body) return null;
  const holder = at.matches(".composer textarea") ? at.closest(".composer") : at;
  const { outlineStyle, outlineWidth } = getComputedStyle(holder);
  const seen = outlineStyle !== "none" && parseFloat(outlineWidth) > 0 && at.getClientRects().length > 0;
  const label = at.labels?.[0]?.firstElementChild?.innerText;
  return [(at.getAttribute("aria-label") || label || at.innerText || "").trim(), seen || at.id === "view", at.tagName];
})()
"""
_CONTROLS = """document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")"""
_UNREACHED = f"""
[...{_CONTROLS}]
  .filter((each) => shown(each) && !each.disabled && !each.reached && getComputedStyle(each).visibility !== "hidden")
  .filter((each) => !each.closest(".log-table tbody tr ~ tr"))
  .filter((each) => !(each.closest(".who") && window.reached?.has(each.outerHTML)))
  .map((each) => each.outerHTML.slice(0, 120))
"""


class Keyboard:
    """Somebody without a mouse."""

    def __init__(self, console: Console) -> None:
        self.page = console.page
        self.console = console

    def focus(self) -> str:
        """The name of what has the focus, which must be seen."""
        found = self.page.run(_FOCUS)
        assert found is not None, "nothing has the focus"
        assert found[1], ("the focus is not seen", found)
        return found[0]

    def to(self, name: str) -> None:
        """Press Tab until what has this name has the focus."""
        passed: list[object] = []
        while len(passed) < self.page.run(f"{_CONTROLS}.length") + 20:  # the log of requests may be long, and grows
            self.page.press("Tab")
            found = self.page.run(_FOCUS)
            if found is not None and found[0] == name:
                self.focus()
                return
            passed.append(found)
        pytest.fail(f"{name!r} is not reached, but {passed}")

    def use(self, name: str, *keys: str) -> None:
        """Go to what has this name, and press keys there."""
        self.console.page.until(f"!!clickable({name!r}) || !!control({name!r})")
        self.to(name)
        for key in keys or ("Enter",):
            self.page.press(key)

    def view(self, name: str) -> None:
        self.use(name)
        self.page.until(f"document.title.startsWith({name!r})")


@pytest.fixture
def keyboard(console: Console) -> Keyboard:
    return Keyboard(console)


def test_every_control_of_every_view_is_reached(keyboard: Keyboard, console_url: str) -> None:
    fail(console_url)
    for view in ("Chat", "Compare", "Protocols", "Live", "Requests", "Experiments", "Models", "Keys"):
        keyboard.view(view)
        # The log may be long and come late, 200 rows of it: one of them stands for all.
        for _ in range(keyboard.page.run(f"{_CONTROLS}.length") + 300):
            keyboard.page.press("Tab")
            # The corner of the session is drawn anew when something is deployed.
            keyboard.page.run("(window.reached ??= new Set()).add(document.activeElement.outerHTML), 0")
            # Asked once: what is drawn anew behind the last answer has not been reached yet.
            unreached = keyboard.page.run(f"(document.activeElement.reached = true, {_UNREACHED.strip()})")
            if not unreached:
                break
            if keyboard.page.run("document.activeElement !== document.body"):
                keyboard.focus()
        assert unreached == [], view


def test_a_question_is_asked_asked_again_and_its_settings_changed(keyboard: Keyboard) -> None:
    keyboard.view("Chat")
    keyboard.use("New conversation")
    assert keyboard.focus() == "Message"
    keyboard.page.type("Hello?")
    keyboard.page.press("Enter")
    keyboard.console.reads("Answered by")
    keyboard.use("Regenerate")
    assert keyboard.focus() in ("Stop", "Send")
    keyboard.console.reads("Answered by")
    keyboard.use("Edit the question")
    assert keyboard.focus() == "Question"
    keyboard.use("Cancel")
    assert keyboard.focus() == "Edit the question"
    keyboard.use("Settings")
    assert keyboard.focus() == "System prompt"
    keyboard.page.press("Escape")
    assert keyboard.focus() == "Settings"


def test_models_are_compared(keyboard: Keyboard) -> None:
    keyboard.view("Compare")
    keyboard.use("Add a column")
    keyboard.use("Remove the column")
    keyboard.use("Ask all")
    keyboard.console.reads("as in A")
    keyboard.use("Raw stream")
    keyboard.console.reads("data: {")


def test_a_failed_request_is_opened_and_closed(keyboard: Keyboard, console_url: str) -> None:
    fail(console_url)
    keyboard.view("Requests")
    line = keyboard.page.until("document.querySelector('.log-table tbody button')?.getAttribute('aria-label')")
    keyboard.use("Pause")
    keyboard.use(line)
    keyboard.console.reads("while the backend's answer came")
    assert keyboard.page.run("document.activeElement.matches('.detail')")
    keyboard.page.press("Escape")
    keyboard.page.until("!document.querySelector('.detail:not([hidden])')")
    assert keyboard.focus() == line


def test_a_split_is_changed_after_a_login(keyboard: Keyboard) -> None:
    keyboard.use("Log in")
    assert keyboard.focus() == "API key"
    keyboard.page.type("root")
    keyboard.page.press("Enter")
    keyboard.console.reads("Administrator")
    keyboard.view("Experiments")
    keyboard.use("Share of candidate", "Home", *["ArrowRight"] * 3)
    keyboard.console.reads("candidate from 40 % to 3 %")
    keyboard.use("Discard")
    keyboard.use("Begin the figures anew")
    assert keyboard.focus() == "Yes: forget the figures of chat"
    keyboard.page.press("Escape")
    assert keyboard.focus() == "Begin the figures anew"
    keyboard.use("Log out")
    keyboard.console.reads("Read-only")
    keyboard.page.run("document.querySelector('.skip').focus()")
    keyboard.page.press("Enter")
    assert keyboard.page.run("document.activeElement.id") == "view"
