"""Limits that several workers count together, by a real state server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest

from gateway.access.keys_file import Key
from gateway.access.limits import Ticket
from gateway.access.local_limiter import LocalLimiter
from gateway.access.rules import RuleTable
from gateway.access.shared_limiter import SharedLimiter
from gateway.config import EndpointLimit, StateSection
from gateway.storage.shared.state_server import StateServer
from schemas.errors import RateLimited
from tests.gateway.state_server import Process

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

KEY = Key(name="team", digest="a" * 64)


@asynccontextmanager
async def limiters(settings: StateSection, number: int = 2) -> AsyncIterator[list[SharedLimiter]]:
    """Workers of gateways with one state server."""
    servers = [StateServer(settings) for _ in range(number)]
    made = [SharedLimiter(server, LocalLimiter(None, None)) for server in servers]
    try:
        yield made
    finally:
        for limiter, server in zip(made, servers, strict=True):
            await limiter.aclose()
            await server.aclose()


async def ask(limiter: SharedLimiter, *limits: EndpointLimit, tokens: int = 0) -> Ticket | None:
    """None: it was refused."""
    rules = RuleTable({"chat": limits}).of(KEY, "chat", None)
    assert rules is not None
    try:
        return await limiter.enter(rules, tokens)
    except RateLimited:
        return None


async def passes(limiter: SharedLimiter, limit: EndpointLimit, tokens: int = 0) -> bool:
    return await ask(limiter, limit, tokens=tokens) is not None


async def is_refused(limiter: SharedLimiter, limit: EndpointLimit) -> bool:
    return await ask(limiter, limit) is None


async def is_back(*limiters: SharedLimiter) -> bool:
    return not any(limiter._server.is_away for limiter in limiters)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 - what another worker has counted
        await asyncio.sleep(0.02)


async def admitted(
    made: Sequence[SharedLimiter], *limits: EndpointLimit, clients: int, tokens: int = 0, most: int
) -> int:
    """How many requests of clients are let pass that ask as fast as they may until so many were, and once more."""
    count, end = 0, asyncio.get_running_loop().time() + 30

    async def client(limiter: SharedLimiter) -> None:
        nonlocal count
        while count < most and asyncio.get_running_loop().time() < end:
            ticket = await ask(limiter, *limits, tokens=tokens)
            count += ticket is not None
            if ticket is not None:
                limiter.leave(ticket, tokens, 0.0)
            await asyncio.sleep(0.01 if ticket is None else 0)

    await asyncio.gather(*(client(limiter) for limiter in made for _ in range(clients)))
    more = await asyncio.gather(*(ask(limiter, *limits, tokens=tokens) for limiter in made for _ in range(clients)))
    return count + sum(ticket is not None for ticket in more)


async def test_two_workers_share_a_limit_exactly_and_ask_rarely(state_process: Process) -> None:
    settings = state_process.settings()
    async with limiters(settings) as made:
        calls = [0]
        for limiter in made:
            evaluate = limiter._server.evaluate

            async def counted(*given, evaluate=evaluate):
                calls[0] += 1
                return await evaluate(*given)

            limiter._server.evaluate = counted
        # What a worker has leased and does not use comes back with the next second.
        assert await admitted(made, EndpointLimit(requests=2000), clients=8, most=2000) == 2000
        assert calls[0] < 800
        assert await admitted(made, EndpointLimit(tokens=5000, window="hour"), clients=4, tokens=7, most=714) == 714


async def test_a_refusal_is_one_everywhere_and_counts_nowhere(state_process: Process) -> None:
    async with limiters(state_process.settings()) as (first, second):
        loose, tight = EndpointLimit(requests=5), EndpointLimit(per="key", requests=1)
        assert await ask(first, loose, tight)
        for limiter in (first, second, first):
            assert await ask(limiter, loose, tight) is None
        remaining = []
        for limiter in (second, first, second, first):
            ticket = await ask(limiter, loose)
            assert ticket is not None
            remaining.append(ticket.quotas[0].remaining)
        assert remaining == [3, 2, 1, 0]
        assert await ask(second, loose) is None
        rules = RuleTable({"chat": (loose,)}).of(KEY, "chat", None)
        assert rules is not None
        with pytest.raises(RateLimited, match="endpoint 'chat' has reached its limit of 5 requests a minute") as caught:
            await first.enter(rules, 0)
        assert 55 < (caught.value.retry_after or 0) <= 60
        assert caught.value.quotas[0].remaining == 0


async def test_tokens_and_costs_are_corrected_for_all(state_process: Process) -> None:
    async with limiters(state_process.settings()) as (first, second):
        limit = EndpointLimit(tokens=100)
        ticket = await ask(first, limit, tokens=80)
        assert ticket is not None
        assert await ask(second, limit, tokens=30) is None
        first.leave(ticket, 20, 0.0)
        await until(partial(passes, second, limit, tokens=80))
        # Lower ones pass where a higher one was refused.
        assert await ask(first, limit, tokens=1) is None
        cost = EndpointLimit(cost=1.0, window="month")
        ticket = await ask(first, cost)
        assert ticket is not None
        first.leave(ticket, None, 1.5)
        await until(partial(is_refused, second, cost))


async def test_no_more_run_at_the_same_time_than_may(state_process: Process) -> None:
    limit, running, most, passed = EndpointLimit(concurrent=6), 0, 0, 0
    async with limiters(state_process.settings()) as made:

        async def client(limiter: SharedLimiter) -> None:
            nonlocal running, most, passed
            for _ in range(40):
                if ticket := await ask(limiter, limit):
                    running, passed = running + 1, passed + 1
                    most = max(most, running)
                    await asyncio.sleep(0.002)
                    running -= 1
                    limiter.leave(ticket, None, 0.0)
                else:
                    await asyncio.sleep(0.005)

        await asyncio.gather(*(client(limiter) for limiter in made for _ in range(8)))
        assert most == 6
        assert passed > 100
        # One worker may have all of them once the other one has none.
        tickets: list[Ticket] = []

        async def has_all() -> bool:
            tickets.extend(filter(None, await asyncio.gather(*(ask(made[0], limit) for _ in range(8)))))
            assert len(tickets) <= 6
            return len(tickets) == 6

        await until(has_all)
        assert await ask(made[1], limit) is None
        made[0].leave(tickets[0], None, 0.0)
        await until(partial(passes, made[1], limit))


async def test_while_the_state_server_is_away_each_worker_counts_for_itself(fleeting_process: Process) -> None:
    limit = EndpointLimit(requests=3, concurrent=10)
    async with limiters(fleeting_process.settings()) as (first, second):
        before = await ask(first, limit)
        assert before is not None
        with fleeting_process.halted(first._server, second._server):
            assert [await ask(second, limit) is not None for _ in range(4)] == [True, True, True, False]
            first.leave(before, None, 0.0)
        await until(partial(is_back, first, second))
        assert [await ask(each, limit) is not None for each in (first, second, first)] == [True, True, False]
