from __future__ import annotations

import pytest

from gateway.config import ConfigError, aliases_of, parse

ENDPOINTS = """\
[backends.s]
kind = "scripted"
[endpoints.a]
served_entities = [{ name = "a", backend = "s" }]
aliases = ONE
[endpoints.b]
served_entities = [{ name = "b", backend = "s" }]
aliases = OTHER
"""


def text(one: list[str], other: list[str]) -> str:
    return ENDPOINTS.replace("ONE", repr(one)).replace("OTHER", repr(other))


@pytest.mark.parametrize(
    ("name", "endpoint"),
    [
        ("gpt-4o", "a"),
        ("gpt-4o-mini", "b"),  # an exact alias goes before a pattern
        ("gpt-4.1", "a"),
        ("claude-3", "b"),
        ("claude-", "b"),
        ("anything", "a"),  # of several patterns, the one with the most characters wins
        ("o1", "b"),
        ("GPT-4o", "a"),
    ],
)
def test_an_alias_leads_to_its_endpoint(name: str, endpoint: str) -> None:
    config = parse(text(["gpt-*", "*"], ["claude-*", "gpt-4o-mini", "o?"]))
    assert aliases_of(config.endpoints).endpoint(name) == endpoint


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (["x"], ["x"], "the alias 'x' clashes with 'x' of endpoints.a"),
        (["gpt-*"], ["gpt-*"], "the alias 'gpt-*' clashes with 'gpt-*' of endpoints.a"),
        (["a*b"], ["?xc", "ba*"], None),
        (["ab*"], ["*yz"], "the alias '*yz' clashes with 'ab*' of endpoints.a"),
        (["ab?"], ["?bc"], "the alias '?bc' clashes with 'ab?' of endpoints.a"),
        (["ab?"], ["cb?"], None),
        (["a"], [], "the alias 'a' is the name of an endpoint"),
        (["x"], ["x*"], None),
    ],
)
def test_a_clash_is_an_error(one: list[str], other: list[str], message: str | None) -> None:
    if message is None:
        parse(text(one, other))
        return
    with pytest.raises(ConfigError, match=r"^\d+: endpoints\.[ab]: ") as error:
        parse(text(one, other))
    assert str(error.value).endswith(message)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('[server]\ndefault = "aa"\n', "10: server.default: there is no endpoint 'aa'; did you mean 'a'?"),
        ('[[server.mounts]]\nprefix = "/x"\nendpoint = "q"\n', "11: server.mounts[0].endpoint: there is no endpoint"),
        ("[[server.listeners]]\nport = 1\nendpoint = 'q'\n", "11: server.listeners[0].endpoint: there is no endpoint"),
    ],
)
def test_a_default_must_exist(section: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text([], []) + section)
    assert str(error.value).startswith(message)


def test_an_endpoint_that_may_be_created_later_can_be_the_default() -> None:
    assert parse(text([], []) + '[server]\ndefault = "q"\nstate_file = "x"\n').server.default == "q"
