"""The command `gateway bench`: a small load on a running server, and how fast it answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import quantiles
from typing import Any

import click
import httpx

from gateway.cli.client import LOCAL, Client, base_url, headers, key_option, uses_proxy

_WORDS = (
    "quick",
    "brown",
    "foxes",
    "jump",
    "over",
    "lazy",
    "dogs",
    "while",
    "seven",
    "wizards",
    "mix",
    "strong",
    "tea",
)


@dataclass(slots=True, eq=False)
class _Answer:
    """One streamed answer: the times of its pieces of text, in seconds, and its tokens."""

    began: float
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0
    failure: str = ""


@click.command()
@click.argument("url", default=LOCAL)
@click.option("--model", "--endpoint", help="Ask this endpoint.  [default: the first that is listed]")
@click.option("--requests", type=click.IntRange(1), default=32, show_default=True, help="Requests in all.")
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Requests at a time.")
@click.option("--prompt-words", type=click.IntRange(1), default=32, show_default=True, help="Words of each prompt.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Tokens of each answer.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@key_option
def bench(
    url: str,
    key_env: str | None,
    model: str | None,
    requests: int,
    concurrency: int,
    prompt_words: int,
    max_tokens: int,
    as_json: bool,
) -> None:
    """Send streamed chats to the server at URL, and print times and tokens a second.

    One request goes ahead and is not counted. Every prompt differs from its first word on, so that no cache of
    prefixes answers.

    gateway bench http://127.0.0.1:8000 --concurrency 16 --requests 200
    """
    with Client(url, key_env) as client:
        model = model or client.models()[0]
    body = {"model": model, "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    took, answers = asyncio.run(_run(base_url(url), headers(key_env), body, (requests, concurrency, prompt_words)))
    figures = _figures(took, answers)
    if as_json:
        click.echo(json.dumps({"model": model, "concurrency": concurrency, **figures}, indent=2))
    else:
        click.echo(f"{model} at {base_url(url)}: {requests} requests, {concurrency} at a time")
        for line in _lines(figures):
            click.echo(line)
    if len(failed := [each for each in answers if each.failure]) == len(answers):
        raise click.ClickException(f"no request was answered: {failed[0].failure}")


async def _run(
    url: str, headers: dict[str, str], body: dict[str, Any], load: tuple[int, int, int]
) -> tuple[float, list[_Answer]]:
    """The seconds that all requests took, and their answers."""
    requests, concurrency, words = load
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    numbers = iter(range(1, requests + 1))
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=600.0, limits=limits, trust_env=uses_proxy(url)
    ) as client:

        async def ask_on() -> list[_Answer]:
            return [await _ask(client, body, _prompt(number, words)) for number in numbers]

        await _ask(client, body, _prompt(0, words))
        began = time.perf_counter()
        answers = await asyncio.gather(*(ask_on() for _ in range(concurrency)))
        return time.perf_counter() - began, list(chain.from_iterable(answers))


async def _ask(client: httpx.AsyncClient, body: dict[str, Any], prompt: str) -> _Answer:
    answer = _Answer(time.perf_counter())
    messages = [{"role": "user", "content": prompt}]
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body | {"messages": messages}) as reply:
            if reply.is_error:
                answer.failure = f"status {reply.status_code}"
                return answer
            done = False
            async for line in reply.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data:"):
                    _read(json.loads(line[5:]), answer)
            if not done and not answer.failure:
                answer.failure = "cut"
    except (httpx.HTTPError, ValueError) as error:
        answer.failure = type(error).__name__
    answer.ended = time.perf_counter()
    return answer


def _read(event: dict[str, Any], answer: _Answer) -> None:
    if "error" in event:
        answer.failure = "error in the stream"
    if any(choice.get("delta", {}).get("content") for choice in event.get("choices", ())):
        answer.pieces.append(time.perf_counter())
    if usage := event.get("usage"):
        answer.tokens = usage.get("completion_tokens") or 0


def _prompt(number: int, words: int) -> str:
    return " ".join((str(number), *(_WORDS[(number + place) % len(_WORDS)] for place in range(words - 1))))


def _figures(took: float, answers: Sequence[_Answer]) -> dict[str, Any]:
    """Times in milliseconds; the server's count of tokens, or the number of pieces if it counts none."""
    good = [each for each in answers if not each.failure]
    tokens = sum(each.tokens or len(each.pieces) for each in good)
    return {
        "answered": len(good),
        "failures": dict(Counter(each.failure for each in answers if each.failure)),
        "seconds": round(took, 3),
        "requests_per_second": round(len(good) / took, 2),
        "tokens_per_second": round(tokens / took, 1),
        "first_token_ms": _spread(each.pieces[0] - each.began for each in good if each.pieces),
        "between_tokens_ms": _spread(late - early for each in good for early, late in pairwise(each.pieces)),
        "whole_ms": _spread(each.ended - each.began for each in good),
    }


def _spread(seconds: Iterator[float]) -> dict[str, float] | None:
    values = sorted(seconds)
    if not values:
        return None
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    return {"p50": round(1000 * cuts[49], 2), "p95": round(1000 * cuts[94], 2)}


def _lines(figures: dict[str, Any]) -> Iterator[str]:
    yield f"  answered           {figures['answered']} in {figures['seconds']:.1f} s"
    for failure, count in figures["failures"].items():
        yield f"  failed             {count}: {failure}"
    yield f"  requests a second  {figures['requests_per_second']}"
    yield f"  tokens a second    {figures['tokens_per_second']}"
    names = {"first_token_ms": "first token", "between_tokens_ms": "between tokens", "whole_ms": "whole answer"}
    for key, name in names.items():
        if spread := figures[key]:
            yield f"  {name:<18} p50 {spread['p50']:.1f} ms, p95 {spread['p95']:.1f} ms"
