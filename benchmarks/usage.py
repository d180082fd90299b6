"""Whether usage adds up exactly while workers are killed, and what it costs.

    python -m benchmarks.usage [--requests 10000] [--kills 50] [--clients 16]

Clients with two keys ask two endpoints through every protocol, whole and streamed, while workers are killed. Then what
the answers said is compared with the records, the log, the sums and the file of CSV. The cost is that of an account's
end in one process, with usage and without it in turns, and that of the collection beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import io
import json
import logging
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
import structlog

from backends.scripted import ScriptedBackend
from benchmarks.gateway import descendants, server
from gateway.access.keys import Keys
from gateway.access.keys_file import keys_file, new_key
from gateway.config import Config, Endpoint, Price, ServedEntity, ServerSection, UsageSection
from gateway.http.accounting import RequestAccount
from gateway.service import Service
from gateway.usage.ledger import Ledger
from schemas.ir import Generate, Usage
from schemas.prompts import ChatPrompt, Message

PRICES = {"one": Price(prompt=0.15, completion=0.6), "two": Price(prompt=3.75, cached=0.0375, completion=15.0)}
CONFIG = """
[server]
workers = 2
keys_file = "{folder}/keys.json"
default = "one"
[usage]
database = "{folder}/usage.sqlite3"
[backends.s]
kind = "scripted"
[endpoints.one]
served_entities = [{{ name = "one", backend = "s", model = "echo", price = {{ prompt = 0.15, completion = 0.6 }} }}]
[endpoints.two]
served_entities = [
    {{ name = "two", backend = "s", model = "echo", price = {{ prompt = 3.75, cached = 0.0375, completion = 15.0 }} }},
]
"""
PROMPTS = tuple(f"prompt {'word ' * number}{number}" for number in range(12))
_SUMS = ("requests", "prompt_tokens", "completion_tokens", "cost")


class Answer(NamedTuple):
    """What a client has read to its end."""

    key: str
    endpoint: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def cost(self) -> int:
        """Billionths."""
        return PRICES[self.endpoint].of(self.prompt_tokens, self.completion_tokens)


@dataclass
class Seen:
    """What all clients saw: answers by request id, and how many others there were."""

    answers: dict[str, Answer] = field(default_factory=dict)
    broken: int = 0


async def drive(
    url: str, keys: Mapping[str, str], requests: int, clients: int, kill: Callable[[], None], kills: int, seed: int = 0
) -> Seen:
    """Ask at random, and call `kill` at random moments.

    Args:
        url: of the gateway.
        keys: name -> key.
        requests: how many.
        clients: at the same time.
        kill: kills a worker.
        kills: how often.
        seed: of all that is random.
    """
    chance, seen = random.Random(seed), Seen()
    tokens = {}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        name = min(keys)
        for prompt in PROMPTS:  # how many tokens a text has, for protocols that do not say it
            await _ask(client, name, keys[name], "one", _completion("one", prompt), {}, seen)
            tokens[prompt] = list(seen.answers.values())[-1][2:]
    moments = set(chance.sample(range(requests // 10, requests), kills))
    left = iter(range(requests))

    async def work() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            for number in left:
                if number in moments:
                    kill()
                name, endpoint = chance.choice(list(keys)), chance.choice(list(PRICES))
                call = chance.choice(_CALLS)(endpoint, chance.choice(PROMPTS))
                try:
                    await _ask(client, name, keys[name], endpoint, call, tokens, seen)
                except httpx.HTTPError:
                    seen.broken += 1
                    await asyncio.sleep(0.05)

    await asyncio.gather(*(work() for _ in range(clients)))
    return seen


Call = tuple[str, dict[str, Any], str]
"""Path, body, and the prompt."""


def _completion(endpoint: str, prompt: str) -> Call:
    return "/v1/completions", {"model": endpoint, "prompt": prompt, "max_tokens": 1000}, prompt


def _chat(endpoint: str, prompt: str) -> Call:
    return "/v1/chat/completions", {"model": endpoint, "messages": [{"role": "user", "content": prompt}]}, prompt


def _chat_stream(endpoint: str, prompt: str) -> Call:
    path, body, _ = _chat(endpoint, prompt)
    return path, body | {"stream": True, "stream_options": {"include_usage": True}}, prompt


def _message(endpoint: str, prompt: str) -> Call:
    _, body, _ = _chat(endpoint, prompt)
    return "/v1/messages", body | {"max_tokens": 500}, prompt


def _message_stream(endpoint: str, prompt: str) -> Call:
    path, body, _ = _message(endpoint, prompt)
    return path, body | {"stream": True}, prompt


def _invocation(endpoint: str, prompt: str) -> Call:
    _, body, _ = _chat(endpoint, prompt)
    return f"/serving-endpoints/{endpoint}/invocations", body, prompt


def _triton(endpoint: str, prompt: str) -> Call:
    return f"/v2/models/{endpoint}/generate", {"text_input": prompt, "parameters": {"max_tokens": 2000}}, prompt


def _tgi(endpoint: str, prompt: str) -> Call:
    parameters = {"max_new_tokens": 1000}
    return "/generate_stream", {"inputs": prompt, "parameters": parameters, "model": endpoint}, prompt


_CALLS = (_completion, _chat, _chat_stream, _message, _message_stream, _invocation, _triton, _tgi)


async def _ask(
    client: httpx.AsyncClient,
    name: str,
    key: str,
    endpoint: str,
    call: Call,
    tokens: Mapping[str, Iterable[int]],
    seen: Seen,
) -> None:
    path, body, prompt = call
    headers = {"authorization": f"Bearer {key}", "x-gateway-model-name": endpoint}
    answer = await client.post(path, json=body, headers=headers)
    if answer.status_code >= 500:  # a worker that has just started waits for its backends
        seen.broken += 1
        return
    assert answer.status_code == 200, answer.text
    said = _usage(answer)
    prompt_tokens, completion_tokens = said or tokens[prompt]
    id = answer.headers["x-request-id"]
    assert id not in seen.answers
    seen.answers[id] = Answer(name, endpoint, prompt_tokens, completion_tokens)


def _usage(answer: httpx.Response) -> tuple[int, int] | None:
    """The tokens that an answer names; None if its protocol does not."""
    found: dict[str, int] = {}
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line[5:] for line in answer.text.splitlines() if line.startswith("data:") and "[DONE]" not in line]
        parts = [json.loads(line) for line in lines]
    else:
        parts = [answer.json()]
    for part in parts:
        for holder in (part, part.get("message") or {}):
            if isinstance(holder, dict):
                found |= {name: value for name, value in (holder.get("usage") or {}).items() if isinstance(value, int)}
    given = found.get("prompt_tokens", found.get("input_tokens"))
    made = found.get("completion_tokens", found.get("output_tokens"))
    return (given, made) if given is not None and made is not None else None


def judge(seen: Seen, logged: bytes, export: str, sums: list[dict[str, Any]], kills: int) -> list[str]:
    """Compare what answers, log, file and sums say, and print the figures; what is wrong.

    Args:
        seen: what the clients saw.
        logged: the server's log.
        export: the records as CSV.
        sums: the groups by key and endpoint.
        kills: how many workers were killed.
    """
    wrong: list[str] = []
    records = {row["request_id"]: _from_row(row) for row in csv.DictReader(io.StringIO(export))}
    lines = [json.loads(line) for line in logged.splitlines() if line.startswith(b"{")]
    log = [line for line in lines if line.get("event") == "request.finished" and line["served"] is not None]
    by_log = {line["request_id"]: _from_line(line) for line in log}
    if len(records) != export.count("\r\n") - 1 or len(by_log) != len(log):
        wrong.append("a request is recorded or logged twice")
    for name, found in (("records", records), ("log", by_log)):
        differing = [id for id, answer in seen.answers.items() if found.get(id) != answer]
        if differing:
            wrong.append(f"{name}: {len(differing)} answers differ, such as {differing[0]}")
        if len(found.keys() - seen.answers.keys()) > seen.broken:
            wrong.append(f"{name}: more requests than clients saw break")
    # Between the two writes of a request, a kill leaves one of them; its client has no end of the answer.
    if len(records.keys() ^ by_log.keys()) > kills:
        wrong.append(f"{len(records.keys() ^ by_log.keys())} requests are either recorded or logged")
    if by_sums := _add(records.values()) ^ {(row["key"], row["endpoint"]): _line(row) for row in sums}.items():
        wrong.append(f"sums differ from the file: {sorted(map(str, by_sums))}")
    answered = _total(seen.answers.values())
    recorded = _total(records[id] for id in seen.answers if id in records)
    print(f"{len(seen.answers)} answers read to the end, {seen.broken} broken, {kills} kills")
    print(f"answers  {answered}\nrecords  {recorded}")
    print(f"log      {_total(by_log[id] for id in seen.answers if id in by_log)}")
    print(f"recorded without an end at the client: {len(records.keys() - seen.answers.keys())}; ", end="")
    print(f"either recorded or logged: {len(records.keys() ^ by_log.keys())}")
    return wrong


def _from_row(row: Mapping[str, str]) -> Answer:
    found = Answer(row["key"], row["endpoint"], int(row["prompt_tokens"] or 0), int(row["completion_tokens"] or 0))
    assert row["cost"] == f"{found.cost // 10**9}.{found.cost % 10**9:09d}", row
    return found


def _from_line(line: Mapping[str, Any]) -> Answer:
    found = Answer(line["key_name"], line["model"], line["prompt_tokens"] or 0, line["completion_tokens"] or 0)
    assert round(line["cost"] * 10**9) == found.cost, line
    return found


def _line(row: Mapping[str, Any]) -> tuple[int, ...]:
    return (row["requests"], row["prompt_tokens"], row["completion_tokens"], round(row["cost"] * 10**9))


def _add(answers: Iterable[Answer]) -> set[tuple[tuple[str, str], tuple[int, ...]]]:
    sums: dict[tuple[str, str], tuple[int, ...]] = {}
    for each in answers:
        one = (1, each.prompt_tokens, each.completion_tokens, each.cost)
        before = sums.get((each.key, each.endpoint), (0, 0, 0, 0))
        sums[each.key, each.endpoint] = tuple(a + b for a, b in zip(before, one, strict=True))
    return set(sums.items())


def _total(answers: Iterable[Answer]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in answers:
        total.update(dict(zip(_SUMS, (1, each.prompt_tokens, each.completion_tokens, each.cost), strict=True)))
    return dict(total)


def read_usage(url: str, admin: str) -> tuple[str, list[dict[str, Any]]]:
    """The records as CSV, and the sums by key and endpoint."""
    headers = {"authorization": f"Bearer {admin}"}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        export = client.get("/v1/usage/records", params={"format": "csv"}).raise_for_status().text
        sums = client.get("/v1/usage", params={"group_by": "key,endpoint"}).raise_for_status().json()["data"]
    return export, sums


def cost(folder: Path, rounds: int = 40, calls: int = 250) -> list[str]:
    """CPU microseconds of an account's end, without usage and with it in turns: medians and least of the rounds."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    entity = ServedEntity(name="one", backend="s", model="echo", price=PRICES["one"])
    endpoints = {"one": Endpoint(served_entities=(entity,))}
    settings = {"without": None, "with": UsageSection(database=str(folder / "usage.sqlite3"))}
    services = {
        name: Service(
            Config(server=ServerSection(), backends={"s": {"kind": "scripted"}}, endpoints=endpoints, usage=usage),
            {"s": ScriptedBackend("s")},
            Keys(),
        )
        for name, usage in settings.items()
    }
    request = Generate(id="", model="one", prompts=(ChatPrompt((Message("user", "x"),)),), user="somebody")
    path: dict[str, list[float]] = {name: [] for name in services}
    collecting = []
    for _ in range(rounds):
        for name, service in services.items():
            plan = service.router.plan(request, {})
            began = time.process_time()
            for _ in range(calls):
                account = RequestAccount(service, "openai", "chat", service.new_id(), request=request, plan=plan)
                account.target, account.usage = plan.targets[0], Usage(100, 20)
                account.end("ok")
            path[name].append((time.process_time() - began) / calls * 1e6)
            if service.usage is not None:
                collecting.append((_collection(service.usage) - _collection(service.usage)) / calls * 1e6)
    for service in services.values():
        if service.usage is not None:
            service.usage.close()
    figures = path | {"collection": collecting}
    return [f"{name:11} {median(each):5.1f} µs a request (least {min(each):.1f})" for name, each in figures.items()]


def _collection(ledger: Ledger) -> float:
    """CPU seconds of collecting what is there, and of a connection."""
    began = time.process_time()
    ledger.read().close()
    return time.process_time() - began


def main() -> int:
    """Run and print; 1 if anything does not add up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(cost(Path(folder))))
    with tempfile.TemporaryDirectory() as folder:
        file = keys_file(Path(folder, "keys.json"))
        keys = {name: new_key(file, name) for name in ("a", "b")}
        admin = new_key(file, "root", roles=("admin",))
        log = Path(folder, "log")
        with server(CONFIG.format(folder=folder), log) as (pid, port):
            chance = random.Random(1)

            def kill() -> None:
                if workers := descendants(pid):  # on a busy machine, the next ones may not have been started yet
                    os.kill(chance.choice(workers), signal.SIGKILL)

            url = f"http://127.0.0.1:{port}"
            seen = asyncio.run(drive(url, keys, given.requests, given.clients, kill, given.kills))
            export, sums = read_usage(url, admin)
            wrong = judge(seen, log.read_bytes(), export, sums, given.kills)
    print("\n".join(wrong) or "all adds up")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
