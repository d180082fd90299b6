"""The console in a browser: every view, hostile texts, phones and wide screens, and what newcomers do."""

from __future__ import annotations

import ast
import json
import shlex
import urllib.request
from typing import Any

from tests.clients.console import HOSTILE, MARKS, Console, ask, log_in, log_out, post

pytestmark = MARKS


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def split(url: str) -> dict[str, int]:
    routes = fetched(f"{url}/api/2.0/serving-endpoints/chat")["config"]["traffic_config"]["routes"]
    return {route["served_entity_name"]: route["traffic_percentage"] for route in routes}


def test_an_answer_is_shown_as_markdown_with_its_figures(console: Console) -> None:
    ask(console, "chat:base", "What is the capital of France?")
    console.reads("Answered by")
    prose = ".message.assistant > .prose"
    assert console.text(f"{prose} strong") == "France"
    assert console.text(f"{prose} td") == "1"
    figures = console.text(".figures").replace("\n", " ")
    assert all(name in figures for name in ("base", "First token", "Total", "Tokens", "Cost")), figures
    assert not console.page.run("document.querySelector('.reasoning').open")
    console.check_layout()
    console.click("Regenerate")
    console.reads("Answered by")
    console.click("Edit the question")
    console.fill("Question", "And of Spain?")
    console.click("Ask again")
    console.reads("Answered by")
    assert console.page.run("document.querySelectorAll('.message').length") == 2
    console.reads("And of Spain?", ".history")


def test_the_settings_are_sent(console: Console) -> None:
    ask(console, "echo", "x")
    console.click("Settings")
    console.fill("System prompt", "Be brief.")
    console.fill("Most tokens", "2")
    console.check_layout()
    ask(console, "echo", "one two three four five")
    console.reads("Ended by")
    console.reads("length", ".figures")
    for name in ("System prompt", "Most tokens"):
        console.fill(name, "")
    console.click("Settings")


def test_a_stopped_answer_stays_and_a_failed_one_says_why(console: Console) -> None:
    ask(console, "endless", "Go on")
    console.reads("again", ".message.assistant")
    console.click("Stop")
    console.reads("Stopped.")
    ask(console, "failing", "Hi")
    console.reads("The request failed.")
    console.check_layout()


def test_a_call_of_a_tool_is_shown_and_its_result_is_sent(console: Console) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    console.click("Settings")
    console.fill("Tools", json.dumps([tool]))
    ask(console, "tools", "How is the weather?")
    console.reads("Calls weather")
    console.fill("Result", '{"sky": "blue"}')
    console.click("Send the result")
    console.reads("blue", ".message.tool")
    console.fill("Tools", "")
    console.click("Settings")


def test_two_arms_are_asked_at_once_and_their_differences_marked(console: Console) -> None:
    console.view("Compare")
    console.fill("Endpoint A", "echo")
    console.fill("Endpoint B", "hostile")
    console.click("Add a column")
    console.fill("Endpoint C", "failing")
    console.fill("Question", HOSTILE.replace("click", "press"))
    console.click("Ask all")
    console.reads("Words as in A", ".column:nth-child(2)")
    assert console.page.run(
        "[...document.querySelectorAll('.column:nth-child(2) mark')].map((mark) => mark.textContent)"
    ) == ["click"]
    console.reads("200 The scripted backend", ".column:nth-child(3)")
    console.check_layout()
    console.click("Remove the column")
    assert console.page.run("document.querySelectorAll('.column').length") == 2
    console.fill("Endpoint A", "chat:candidate")
    console.fill("Endpoint B", "ramped:old")
    console.fill("Mark differences by", "tokens, where the answers have them")
    console.click("Ask all")
    console.reads("Tokens as in A", ".column:nth-child(2)")
    assert "data: [DONE]" not in console.text(".column:nth-child(2) pre")  # folded
    console.click("Raw stream")
    console.reads("data: {", ".column:nth-child(2) pre")
    console.fill("Mark differences by", "words")


def test_one_question_is_asked_in_every_protocol(console: Console) -> None:
    console.view("Protocols")
    badges = "[...document.querySelectorAll('.protocol .badge')].map((badge) => badge.textContent)"
    for endpoint, state in (("chat", "200 complete"), ("hostile", "200 complete"), ("failing", "failed in the stream")):
        console.fill("Endpoint", endpoint)
        console.click("Ask in every protocol")
        console.page.until(f"{badges}.every((text) => text === {json.dumps(state)})")
        if endpoint == "hostile":
            texts = console.page.run("[...document.querySelectorAll('.assembled')].map((text) => text.textContent)")
            assert texts == [HOSTILE] * 8
    console.check_layout()
    # What is copied is read by the languages themselves.
    snippets = "import('/ui/protocols/snippets.js')"
    request = "{ path: '/x', body: { a: [true, null, \"it's\"], b: 1.5 }, headers: { c: 'd' } }"
    python = console.page.run(f"{snippets}.then(({{ SNIPPETS }}) => SNIPPETS.Python({request}, true))")
    assert {"a": [True, None, "it's"], "b": 1.5} in [
        ast.literal_eval(node.value)
        for node in ast.parse(python).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "body"
    ]
    curl = console.page.run(f"{snippets}.then(({{ SNIPPETS }}) => SNIPPETS.curl({request}, false))")
    assert json.loads(shlex.split(curl)[-1]) == {"a": [True, None, "it's"], "b": 1.5}


def test_an_experiment_is_seen_and_its_split_changed_and_undone(console: Console, console_url: str) -> None:
    for number in range(400):
        post(console_url, {"model": "chat", "user": f"user {number}", "messages": [{"role": "user", "content": "Hi"}]})
    console.view("Experiments")
    console.reads("keep collecting", ".metrics")
    console.page.until("document.querySelectorAll('.bar-scale').length > 3")
    assert console.page.run("document.querySelectorAll('.arm input:enabled').length") == 0
    log_in(console, "root")
    console.view("Experiments")
    console.fill("Share of candidate", "45")
    shares = "[...document.querySelectorAll('.arm output')].map((output) => output.textContent)"
    assert console.page.run(shares) == ["55 %", "45 %"]
    console.reads("Moves base from 60 % to 55 %, candidate from 40 % to 45 %. The figures", ".effect")
    console.check_layout()
    console.click("Apply")
    console.reads("changed the split", "#view")
    assert split(console_url) == {"base": 55, "candidate": 45}
    console.page.until(f"{shares}.join() === '55 %,45 %'")
    assert "400 requests since" in console.text()
    console.click("Undo: back to base 60 %, candidate 40 %")
    console.page.until(f"{shares}.join() === '60 %,40 %'")
    assert split(console_url) == {"base": 60, "candidate": 40}
    console.click("Begin the figures anew")
    console.click("Yes: forget the figures of chat")
    console.reads("0 requests since")
    console.page.until("!!document.querySelector('#notices .notice')")
    while console.page.run("document.querySelectorAll('#notices .notice').length"):
        console.click("Dismiss")
    log_out(console)


def test_a_ramp_is_started_by_its_button(console: Console) -> None:
    log_in(console, "root")
    console.view("Experiments")
    console.fill("Endpoint", "ramped")
    console.reads("Ramp of new", "[aria-label=Ramp]")
    console.page.until("document.querySelector('.steps .now')?.textContent === '5 %'")
    console.click("Start the ramp")
    console.click("Start: the arm begins without traffic, and the figures begin anew")
    console.reads("started the ramp again")
    console.click("Dismiss")
    log_out(console)


def test_shares_always_add_up_to_100(console: Console) -> None:
    found = console.page.run(
        "import('/ui/experiments/shares.js').then(({ moved }) => {"
        "const wrong = []; let shares = [34, 33, 33];"
        "for (let step = 0; step < 300; step += 1) {"
        "  const [at, value] = [step % 3, (step * 37) % 101]; shares = moved(shares, at, value);"
        "  if (shares.reduce((a, b) => a + b) !== 100 || shares[at] !== value "
        "|| Math.min(...shares) < 0) wrong.push(shares);"
        "} return [wrong, moved([100, 0], 0, 30), moved([100, 0, 0], 0, 0), moved([100], 0, 3)]; })"
    )
    assert found == [[], [30, 70], [0, 100, 0], [100]]


def test_somebody_finds_why_a_request_failed(console: Console, console_url: str) -> None:
    post(console_url, {"model": "hostile", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5})
    ask(console, "failing", "Hi")
    console.reads("The request failed.")
    console.view("Requests")
    console.fill("Outcome", "not ok")
    console.fill("Endpoint", "failing")
    console.page.until("document.querySelectorAll('.log-table tbody tr').length > 0")
    console.page.run("document.querySelector('.log-table tbody button').click()")
    console.reads("The scripted backend was configured to fail: error.", ".detail")
    detail = console.text(".detail")
    assert "while the backend's answer came" in detail
    assert all(name in detail for name in ("Read and routed", "Wait and prompt", "Asked by", "the console"))
    console.check_layout()
    console.click("Close")
    console.fill("Outcome", "")
    console.fill("Endpoint", "hostile")
    before = console.page.run("document.querySelectorAll('.log-table tbody tr').length")
    post(console_url, {"model": "hostile", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5})
    console.page.until(f"document.querySelectorAll('.log-table tbody tr').length > {before}")


def test_the_last_minutes_are_drawn(console: Console) -> None:
    console.view("Live")
    console.page.until("document.querySelectorAll('.u-over').length >= 5")
    console.fill("Show", "chat → base")
    console.fill("Show", "Backend s")
    console.reads("ready", "[aria-label=Backends]")
    console.check_layout()


def test_what_is_loaded_is_listed(console: Console) -> None:
    console.view("Models")
    console.reads("scripted", "[aria-label=s]")
    console.check_layout()
    console.view("Keys")
    console.reads("The server has no keys_file")


def test_hostile_answers_are_text(console: Console) -> None:
    ask(console, "hostile", HOSTILE)
    console.reads("Answered by")
    assert (
        console.page.run(
            "document.querySelectorAll('#view .prose img, #view .prose script, a[href^=javascript]').length"
        )
        == 0
    )
    assert "<img src=x" in console.text(".message.assistant")


def test_nothing_is_loaded_from_elsewhere(console: Console, console_url: str) -> None:
    loaded = console.page.run("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in loaded if not name.startswith((console_url, "data:"))] == []


def test_a_wrong_key_is_refused_and_an_admin_key_is_kept_for_the_tab(console: Console) -> None:
    console.click("Log in")
    console.check_layout()
    console.fill("API key", "wrong")
    console.click("Log in")
    console.reads("not known", ".login")
    console.page.errors.clear()  # the refusal
    console.fill("API key", "root")
    console.click("Log in")
    console.reads("Administrator", ".who")
    assert console.page.run("[sessionStorage.length > 0, localStorage.getItem('interlingua.key')]") == [True, None]
    console.click("Log out")
    console.reads("Read-only", ".who")


def test_a_request_is_replayed_on_another_arm(console: Console, console_url: str) -> None:
    id = post(console_url, {"model": "chat:base", "messages": [{"role": "user", "content": "Of France?"}]})
    console.view("Requests")
    console.fill("Outcome", "all")
    console.fill("Endpoint", "chat")
    console.page.until(f"((line) => line && (line.click(), true))(document.querySelector('[data-id=\"{id}\"]'))")
    console.reads("Text of the answer", ".detail")
    console.click("Body of the request")
    console.reads("Of France?", ".detail details")
    console.fill("On", "chat → candidate")
    console.click("Replay")
    console.reads("candidate", "[aria-label=Replay] dl")
    assert console.page.run("document.querySelectorAll('[aria-label=Replay] mark').length") > 0
    console.check_layout()
    console.click("Close")
    console.fill("Endpoint", "all")


def test_nothing_moves_where_motion_is_unwanted(console: Console) -> None:
    console.page.show(1400, still=True)
    # A transition that has begun ends in its time: the test before this one ends with another theme.
    console.page.until("document.getAnimations().length === 0")
    console.page.show(1400, dark=True, still=True)
    moving = "[...document.querySelectorAll('*')].filter((each) => getComputedStyle(each).transitionDuration !== '0s')"
    assert console.page.run(f"{moving}.length + document.getAnimations().length") == 0
    console.page.show(1400)
    assert console.page.run(f"{moving}.length") > 0
