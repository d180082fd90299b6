"""Limits: what is refused, what is given back, and what is sent to the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.keys_file import Key
from gateway.access.limits import Limiter, estimated_tokens, rules_for
from gateway.config import EndpointLimit, Limit
from schemas.errors import RateLimited
from schemas.ir import Embed, Generate, Stopping
from schemas.prompts import ChatPrompt, ImagePart, Message, TextPart, TextPrompt, TokensPrompt
from schemas.quota import Quota

KEY = Key(name="team", digest="a" * 64)
START = 1_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [START]
    monkeypatch.setattr("gateway.access.limits.time.time", lambda: now[0])
    return now


def ask(limiter: Limiter, *limits: EndpointLimit, key: Key | None = KEY, user: str | None = None, tokens: int = 0):  # type: ignore[no-untyped-def]
    rules = rules_for(key, "chat", limits, user)
    assert rules is not None
    return limiter.enter(rules, tokens)


def test_requests_a_minute(clock: list[float]) -> None:
    limiter, limit = Limiter(None, None), EndpointLimit(requests=3)
    remaining = []
    for _ in range(3):
        remaining.append(ask(limiter, limit).quotas)
        clock[0] += 10
    assert [each[0].remaining for each in remaining] == [2, 1, 0]
    assert remaining[0] == (Quota("requests", 3, 2, 60.0),)
    with pytest.raises(RateLimited, match="endpoint 'chat' has reached its limit of 3 requests a minute") as refused:
        ask(limiter, limit)
    assert refused.value.retry_after == 30.0
    assert refused.value.quotas[0].remaining == 0
    clock[0] += 30
    ask(limiter, limit)
    with pytest.raises(RateLimited):
        ask(limiter, limit)


def test_a_refused_request_counts_nowhere(clock: list[float]) -> None:
    limiter = Limiter(None, None)
    loose, tight = EndpointLimit(requests=5), EndpointLimit(per="key", requests=1)
    ask(limiter, loose, tight)
    for _ in range(10):
        with pytest.raises(RateLimited, match="key 'team'"):
            ask(limiter, loose, tight)
    assert ask(limiter, loose, key=None).quotas[0].remaining == 3


def test_tokens_count_by_estimate_and_then_as_they_were(clock: list[float]) -> None:
    limiter, limit = Limiter(None, None), EndpointLimit(tokens=100)
    first = ask(limiter, limit, tokens=80)
    with pytest.raises(RateLimited, match="100 tokens a minute"):
        ask(limiter, limit, tokens=30)
    limiter.leave(first, 20, 0.0)
    second = ask(limiter, limit, tokens=80)
    assert second.quotas == (Quota("tokens", 100, 0, 60.0),)
    limiter.leave(second, None, 0.0)
    with pytest.raises(RateLimited):
        ask(limiter, limit, tokens=1)


def test_more_tokens_than_the_limit_are_never_free(clock: list[float]) -> None:
    with pytest.raises(RateLimited, match="may take 101 tokens") as refused:
        ask(Limiter(None, None), EndpointLimit(tokens=100), tokens=101)
    assert refused.value.retry_after is None


def test_a_budget_is_used_up_by_answers(clock: list[float]) -> None:
    limiter, limit = Limiter(None, None), EndpointLimit(cost=0.5, window="day")
    limiter.leave(ask(limiter, limit), 10, 0.3)
    limiter.leave(ask(limiter, limit), 10, 0.3)
    with pytest.raises(RateLimited, match=r"0\.5") as refused:
        ask(limiter, limit)
    assert refused.value.code == "insufficient_quota"
    assert refused.value.retry_after == 86400 - START % 86400
    clock[0] += 86400
    ask(limiter, limit)


def test_concurrent_requests(clock: list[float], tmp_path: Path) -> None:
    one, other = Limiter(None, tmp_path), Limiter(None, tmp_path)
    limit = EndpointLimit(concurrent=2)
    first = ask(one, limit)
    ask(other, limit)
    with pytest.raises(RateLimited, match="2 requests running"):
        ask(one, limit)
    one.leave(first, None, 0.0)
    ask(other, limit)
    other.close()  # as if it was killed: the worker in its place begins with none
    replaced = Limiter(None, tmp_path)
    ask(replaced, limit)
    ask(replaced, limit)
    for limiter in (one, replaced):
        limiter.close()


def test_each_user_and_each_key_has_a_limit_of_its_own(clock: list[float]) -> None:
    limiter = Limiter(None, None)
    for user in ("ann", "bob"):
        ask(limiter, EndpointLimit(per="user", requests=1), user=user)
    for name in ("team", "other"):
        ask(limiter, EndpointLimit(per="key", requests=1), key=Key(name=name, digest=name[0] * 64))
    with pytest.raises(RateLimited, match="The user"):
        ask(limiter, EndpointLimit(per="user", requests=1), user="ann")
    assert rules_for(None, "chat", (), None) is None


def test_the_limits_of_a_key_are_those_of_all_endpoints(clock: list[float]) -> None:
    key, limiter = Key(name="team", digest="a" * 64, limits=(Limit(requests=1),)), Limiter(None, None)
    for endpoint, refused in (("chat", False), ("embed", True)):
        rules = rules_for(key, endpoint, (), None)
        assert rules is not None
        if refused:
            with pytest.raises(RateLimited):
                limiter.enter(rules, 0)
        else:
            limiter.enter(rules, 0)


def test_windows_outlive_the_process(clock: list[float], tmp_path: Path) -> None:
    limit = EndpointLimit(requests=1, window="month")
    before = Limiter(tmp_path / "keys.json.limits", None)
    ask(before, limit)
    before.close()
    with pytest.raises(RateLimited, match="a month"):
        ask(Limiter(tmp_path / "keys.json.limits", None), limit)


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
