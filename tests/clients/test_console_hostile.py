"""Hostile markup wherever the console shows what others have written: every view, by the place that it comes from.

The `fetch` of the page is replaced, so that names, errors, headers and texts come that no server can be configured
with. Nothing of them may become an element, let alone run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.clients.console import HOSTILE, MARKS, Console, ask, fail, post

pytestmark = MARKS

NAMES = ["chat", "base", "candidate", "s", "rich", "scripted", "root", "backend_failed", "ready", "temperature"]
"""Strings of the server's own answers that get the markup: endpoints, arms, backends, models, keys, kinds of errors."""

PAIRED = {
    "arm": HOSTILE,
    "verdict": {"word": HOSTILE, "reason": HOSTILE, "caveat": HOSTILE, "pairs_needed": 3},
    "pairs": 2,
    "identical": None,
    "token_agreement": None,
    "top_token_agreement": None,
    "log_likelihoods": [{"answers_of": HOSTILE, "difference": None}],
    "not_paired": {HOSTILE: 1},
    "examples": [
        {
            "request_id": HOSTILE,
            "prompt": HOSTILE,
            "control_answer": HOSTILE,
            "arm_answer": HOSTILE,
            "log_likelihood_difference": 1,
            "token_agreement": 0.5,
            "first_divergence": 1,
        }
    ],
}
CHANGE = {"time": 1, "by": HOSTILE, "action": HOSTILE, "before": {HOSTILE: 60}, "after": {HOSTILE: 100}}
KEY = {"name": HOSTILE, "hint": HOSTILE, "roles": [HOSTILE], "endpoints": [HOSTILE], "limits": [], "expires": None}
USAGE = {"day": "2026-01-01", "key": HOSTILE, "requests": 1, "prompt_tokens": 1, "completion_tokens": 1, "cost": "1"}

_FETCH = """
(() => {
  const { markup, names, place, answers, changed } = TEXTS;
  const real = window.fetch;
  // Whole strings of JSON, and their parts before ":"; neither the field `ready` nor the task "chat".
  const found = new RegExp(`(?<!"task":)"(${names.join("|")})((?::[^"<]*)?)"(?!:(?:true|false))`, "g");
  const json = (body, status = 200, more = {}) =>
    new Response(JSON.stringify(body), { status, headers: { "content-type": "application/json", ...more } });
  window.fetch = async (path, options) => {
    path = path.replaceAll(encodeURIComponent(markup), "");
    const ours = (part) => path.startsWith(`/v1/console/${part}`);
    const poisoned = (text) => text.replace(found, (_, name, rest) => JSON.stringify(name + markup + rest));
    if (place === "errors") {
      if (ours("session") || ours("events")) return real(path, options);
      return json({ error: { message: markup } }, 418, { "x-request-id": markup, "retry-after": markup });
    }
    for (const [start, body] of Object.entries(answers)) if (path.startsWith(start)) return json(body);
    const answer = await real(path, options);
    if (ours("events")) {
      const change = new TransformStream({ transform: (text, out) => out.enqueue(poisoned(text)) });
      const texts = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(change);
      return new Response(texts.pipeThrough(new TextEncoderStream()), { status: answer.status });
    }
    if (!ours("")) {
      const headers = new Headers(answer.headers);
      for (const name of ["served-model-name", "x-interlingua-ignored", "x-request-id"]) headers.set(name, markup);
      return new Response(answer.body, { status: answer.status, headers });
    }
    const body = JSON.parse(poisoned(await answer.text()));
    if (ours("session")) Object.assign(body, changed.session);
    if (ours("experiment")) {
      body.report.paired = changed.paired;
      body.changes = changed.changes;
    }
    return json(body);
  };
})();
"""

VIEWS = {
    # What must be shown of the names, so that each place is seen to be tested.
    "Chat": ["chat", "base"],
    "Compare": ["chat", "base"],
    "Protocols": ["chat", "base"],
    "Live": ["s", "ready"],
    "Requests": ["base", "backend_failed"],
    "Experiments": ["chat", "base", "candidate"],
    "Models": ["s", "ready"],
    "Keys": [""],
}


@contextmanager
def poisoned(console: Console, place: str) -> Iterator[None]:
    """The page with hostile texts in a place, and afterwards the page without them."""
    admin = {"key": HOSTILE, "can_change": True, "has_keys_file": True, "keeps_usage": True, "is_changeable": True}
    texts = {
        "markup": HOSTILE,
        "names": NAMES,
        "place": place,
        "answers": {"/v1/keys": {"keys": [KEY]}, "/v1/usage": {"data": [USAGE]}},
        "changed": {"session": admin, "paired": [PAIRED], "changes": [CHANGE]},
    }
    # Other tests leave a conversation, without the questions that an empty one offers.
    console.page.run("sessionStorage.clear(); localStorage.clear(); true")
    with console.page.beforehand(_FETCH.replace("TEXTS", json.dumps(texts))):
        console.open(console.url)
        try:
            yield
            assert_harmless(console)
        finally:
            console.page.run("sessionStorage.clear(); localStorage.clear(); true")
            console.page.errors.clear()
    console.open(console.url)


def assert_harmless(console: Console) -> None:
    """Nothing of the markup has become an element, and no script of it ran."""
    injected = "img[src=x], [onerror], script:not([src^='/ui/']), a[href^='javascript']"
    assert (
        console.page.run(f"[...document.querySelectorAll({json.dumps(injected)})].map((each) => each.outerHTML)") == []
    )
    assert not console.page.run("'hacked' in window")


def test_names_of_endpoints_arms_backends_keys_and_headers(console: Console, console_url: str) -> None:
    post(console_url, {"model": "chat:base", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5})
    fail(console_url)
    with poisoned(console, "names"):
        for view, shown in VIEWS.items():
            console.view(view)
            for name in shown:
                expected = json.dumps(name + HOSTILE)
                # Options of a closed list are in `textContent` alone.
                console.page.until(f"document.querySelector('#view').textContent.includes({expected})")
            if view == "Chat":
                console.click("What is 12 + 7?")
                console.reads(f"Answered by\n{HOSTILE}")
            if view in ("Compare", "Protocols"):
                console.click("Ask all" if view == "Compare" else "Ask in every protocol")
                console.page.until("document.querySelectorAll('.answer .bad, .assembled .bad').length > 1")
            if view == "Requests":
                console.page.run("document.querySelector('.log-table tbody button').click()")
                console.reads("Request id", ".detail")
            assert_harmless(console)


def test_errors(console: Console) -> None:
    with poisoned(console, "errors"):
        for view in VIEWS:
            console.page.run("document.querySelector('#notices').replaceChildren()")
            console.view(view)
            if view == "Chat":
                console.click("What is 12 + 7?")
            if view in ("Compare", "Protocols"):
                console.click("Ask all" if view == "Compare" else "Ask in every protocol")
            if view != "Keys":  # without a key it asks nothing
                console.reads(HOSTILE)
            assert_harmless(console)


def test_answers(console: Console) -> None:
    """Texts, reasoning, calls and their arguments, in the views that ask."""
    ask(console, "hostile", HOSTILE)
    console.reads("Answered by")
    assert "<img src=x" in console.text(".message.assistant")
    assert_harmless(console)
    for view, button in (("Compare", "Ask all"), ("Protocols", "Ask in every protocol")):
        console.view(view)
        for name in ("Endpoint A", "Endpoint B") if view == "Compare" else ("Endpoint",):
            console.fill(name, "hostile")
        console.fill("Question", HOSTILE)
        console.click(button)
        console.page.until(
            "[...document.querySelectorAll('.answer, .assembled')].every((each) => each.textContent.includes('<img'))"
        )
        assert_harmless(console)
    drawn = (
        "Promise.all([import('/ui/chat/message.js'), import('/ui/shared/ask.js')])"
        ".then(([{ messageView }, { blank }]) => {"
        f"const markup = {json.dumps(HOSTILE)};"
        "const call = { id: markup, name: markup, arguments: markup };"
        "const answer = { ...blank(), state: 'done', text: markup, reasoning: markup, calls: [call], finish: markup };"
        "document.querySelector('#view').append(messageView({ role: 'assistant', answer }, {}),"
        "  messageView({ role: 'tool', text: markup }, {}), messageView({ role: 'user', text: markup }, {}));"
        "return document.querySelector('#view').innerText.split('<img src=x').length; })"
    )
    assert console.page.run(drawn) > 5
    assert_harmless(console)
    console.view("Chat")
