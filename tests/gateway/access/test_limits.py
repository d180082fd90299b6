"""Limits: what is refused, what is given back, and what is sent to the client."""

from __future__ import annotations

import asyncio
from multiprocessing import Queue, get_context
from pathlib import Path

import pytest

from gateway.access.keys_file import Key
from gateway.access.limits import Ticket
from gateway.access.local_limiter import LocalLimiter
from gateway.access.rules import RuleTable, estimated_tokens
from gateway.config import EndpointLimit, Limit
from schemas.errors import Quota, RateLimited
from schemas.ir import Embed, Generate, Stopping
from schemas.prompts import ChatPrompt, ImagePart, Message, TextPart, TextPrompt, TokensPrompt

KEY = Key(name="team", digest="a" * 64)
START = 1_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [START]
    monkeypatch.setattr("gateway.access.local_limiter.time.time", lambda: now[0])
    return now


async def ask(
    limiter: LocalLimiter, *limits: EndpointLimit, key: Key | None = KEY, user: str | None = None, tokens: int = 0
) -> Ticket:
    rules = RuleTable({"chat": limits}).of(key, "chat", user)
    assert rules is not None
    return await limiter.enter(rules, tokens)


async def test_requests_a_minute(clock: list[float]) -> None:
    limiter, limit = LocalLimiter(None, None), EndpointLimit(requests=3)
    remaining = []
    for _ in range(3):
        remaining.append((await ask(limiter, limit)).quotas)
        clock[0] += 10
    assert [each[0].remaining for each in remaining] == [2, 1, 0]
    assert remaining[0] == [Quota("requests", 3, 2, 60)]
    with pytest.raises(RateLimited, match="endpoint 'chat' has reached its limit of 3 requests a minute") as refused:
        await ask(limiter, limit)
    assert refused.value.retry_after == 30.0
    assert refused.value.quotas[0].remaining == 0
    clock[0] += 30
    await ask(limiter, limit)
    with pytest.raises(RateLimited):
        await ask(limiter, limit)


async def test_a_refused_request_counts_nowhere(clock: list[float]) -> None:
    limiter = LocalLimiter(None, None)
    loose, tight = EndpointLimit(requests=5), EndpointLimit(per="key", requests=1)
    await ask(limiter, loose, tight)
    for _ in range(10):
        with pytest.raises(RateLimited, match="key 'team'"):
            await ask(limiter, loose, tight)
    assert (await ask(limiter, loose, key=None)).quotas[0].remaining == 3


async def test_tokens_count_by_estimate_and_then_as_they_were(clock: list[float]) -> None:
    limiter, limit = LocalLimiter(None, None), EndpointLimit(tokens=100)
    first = await ask(limiter, limit, tokens=80)
    with pytest.raises(RateLimited, match="100 tokens a minute"):
        await ask(limiter, limit, tokens=30)
    limiter.leave(first, 20, 0.0)
    second = await ask(limiter, limit, tokens=80)
    assert second.quotas == [Quota("tokens", 100, 0, 60)]
    limiter.leave(second, None, 0.0)
    with pytest.raises(RateLimited):
        await ask(limiter, limit, tokens=1)


async def test_a_correction_reaches_the_other_workers_in_the_same_turn(tmp_path: Path) -> None:
    one, other = (LocalLimiter(tmp_path / "limits", None) for _ in range(2))
    limit = EndpointLimit(tokens=100, window="day")
    one.leave(await ask(one, limit, tokens=80), 20, 0.0)
    one.leave(await ask(one, limit, tokens=10), 20, 0.0)
    await asyncio.sleep(0)
    assert (await ask(other, limit)).quotas[0].remaining == 60
    one.leave(await ask(one, limit, tokens=10), 50, 0.0)
    await one.aclose()
    assert (await ask(other, limit)).quotas[0].remaining == 10
    await other.aclose()


async def test_more_tokens_than_the_limit_are_never_free(clock: list[float]) -> None:
    with pytest.raises(RateLimited, match="may take 101 tokens") as refused:
        await ask(LocalLimiter(None, None), EndpointLimit(tokens=100), tokens=101)
    assert refused.value.retry_after is None


async def test_a_budget_is_used_up_by_answers(clock: list[float]) -> None:
    limiter, limit = LocalLimiter(None, None), EndpointLimit(cost=0.5, window="day")
    limiter.leave(await ask(limiter, limit), 10, 0.3)
    limiter.leave(await ask(limiter, limit), 10, 0.3)
    with pytest.raises(RateLimited, match=r"0\.5") as refused:
        await ask(limiter, limit)
    assert refused.value.code == "insufficient_quota"
    assert refused.value.retry_after == 86400 - START % 86400
    clock[0] += 86400
    await ask(limiter, limit)


async def test_concurrent_requests(clock: list[float], tmp_path: Path) -> None:
    one, other = LocalLimiter(None, tmp_path), LocalLimiter(None, tmp_path)
    limit = EndpointLimit(concurrent=2)
    first = await ask(one, limit)
    await ask(other, limit)
    with pytest.raises(RateLimited, match="2 requests running"):
        await ask(one, limit)
    one.leave(first, None, 0.0)
    await ask(other, limit)
    await other.aclose()  # as if it was killed: the worker in its place begins with none
    replaced = LocalLimiter(None, tmp_path)
    await ask(replaced, limit)
    await ask(replaced, limit)
    for limiter in (one, replaced):
        await limiter.aclose()


async def test_each_user_and_each_key_has_a_limit_of_its_own(clock: list[float]) -> None:
    limiter = LocalLimiter(None, None)
    for user in ("ann", "bob"):
        await ask(limiter, EndpointLimit(per="user", requests=1), user=user)
    for name in ("team", "other"):
        await ask(limiter, EndpointLimit(per="key", requests=1), key=Key(name=name, digest=name[0] * 64))
    with pytest.raises(RateLimited, match="The user"):
        await ask(limiter, EndpointLimit(per="user", requests=1), user="ann")
    assert RuleTable({"chat": ()}).of(None, "chat", None) is None


async def test_the_limits_of_a_key_are_those_of_all_endpoints(clock: list[float]) -> None:
    key, limiter = Key(name="team", digest="a" * 64, limits=(Limit(requests=1),)), LocalLimiter(None, None)
    for endpoint, refused in (("chat", False), ("embed", True)):
        rules = RuleTable({}).of(key, endpoint, None)
        assert rules is not None
        if refused:
            with pytest.raises(RateLimited):
                await limiter.enter(rules, 0)
        else:
            await limiter.enter(rules, 0)


# Of a window that does not slide meanwhile.
SATURATED = (EndpointLimit(requests=2000, window="month"), EndpointLimit(tokens=10_000, window="month"))


def saturate(path: Path, results: Queue[tuple[int, ...]]) -> None:
    """Ask until there has been nothing left for a while; put down how many requests passed each limit."""

    async def passed(limit: EndpointLimit) -> int:
        limiter, passed, refused = LocalLimiter(path, None), 0, 0
        while refused < 10:
            try:
                ticket = await ask(limiter, limit, tokens=7)
            except RateLimited:
                refused += 1
                await asyncio.sleep(0.02)
                continue
            passed, refused = passed + 1, 0
            limiter.leave(ticket, 5, 0.0)
            await asyncio.sleep(0)
        await limiter.aclose()
        return passed

    results.put(tuple([asyncio.run(passed(limit)) for limit in SATURATED]))


@pytest.mark.slow
def test_processes_let_pass_what_the_limit_says_and_no_more(tmp_path: Path) -> None:
    context = get_context("spawn")
    results: Queue[tuple[int, ...]] = context.Queue()
    processes = [context.Process(target=saturate, args=(tmp_path / "limits", results)) for _ in range(4)]
    for process in processes:
        process.start()
    requests, answers = map(sum, zip(*[results.get(timeout=60) for _ in processes], strict=True))
    for process in processes:
        process.join()
    assert requests == 2000
    # Of the tokens, less is left than another request may take.
    assert 10_000 - 7 < 5 * answers <= 10_000


async def test_windows_outlive_the_process(clock: list[float], tmp_path: Path) -> None:
    limit = EndpointLimit(requests=1, window="month")
    before = LocalLimiter(tmp_path / "keys.json.limits", None)
    await ask(before, limit)
    await before.aclose()
    with pytest.raises(RateLimited, match="a month"):
        await ask(LocalLimiter(tmp_path / "keys.json.limits", None), limit)


def test_an_estimate_is_the_prompts_length_and_the_most_that_is_asked_for() -> None:
    text, ids = TextPrompt("x" * 40), TokensPrompt((1, 2, 3))
    chat = ChatPrompt(
        (
            Message("system", "y" * 8),
            Message("user", (TextPart("z" * 4), ImagePart("data:", "data"))),
            Message("assistant"),
        )
    )
    stopping = Stopping(max_new_tokens=5)
    assert estimated_tokens(Generate(id="", model="m", prompts=(text,), stopping=stopping, n=2)) == 20
    assert estimated_tokens(Generate(id="", model="m", prompts=(ids, chat))) == 6
    assert estimated_tokens(Embed(id="", model="m", inputs=(text, ids))) == 13


def test_rules_are_made_once_and_again_for_a_changed_key() -> None:
    table = RuleTable({"chat": (EndpointLimit(requests=1),), "users": (EndpointLimit(per="user", requests=1),)})
    first = table.of(KEY, "chat", "ann")
    assert first is table.of(KEY, "chat", "bob"), "it does not depend on the user"
    assert table.of(KEY, "users", "ann") is not table.of(KEY, "users", "bob")
    changed = Key(name="team", digest=KEY.digest, limits=(Limit(tokens=5),))
    made = table.of(changed, "chat", None)
    assert made is not None
    assert [rule.kind for rule in made.windows] == ["tokens", "requests"]
