"""The rules that hold for a request: the limits of its key, its endpoint and its user, made once for each of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from gateway.access.counters import Name, name_of
from gateway.access.keys_file import Key
from gateway.config import EndpointLimit, Limit, Window
from schemas.ir import Embed, Generate, Request
from schemas.prompts import ChatPrompt, TextPart, TextPrompt, TokensPrompt

Kind = Literal["requests", "tokens", "cost"]

_KEPT = 4096
"""The most rules that are kept; a server with more users makes them anew now and then."""
_BYTES_PER_TOKEN = 4
"""Of English text, for the estimate of a prompt."""


class Rule(msgspec.Struct, frozen=True):
    """One number of a `Limit`, for one key, endpoint or user.

    Attributes:
        name: of what is counted.
        kind: what is limited; `most` of it in a `window`, `whole` of it as an integer.
        subject: whose limit it is, for the error.
    """

    name: Name
    kind: Kind
    most: float
    whole: int
    window: Window
    subject: str


class Rules(msgspec.Struct, frozen=True):
    """What is to be checked for a request.

    Attributes:
        windows: rules with a window.
        concurrent: (name, most, subject) of limits of requests that run at the same time.
        by_tokens: whether an estimate of the request's tokens is needed.
    """

    windows: tuple[Rule, ...] = ()
    concurrent: tuple[tuple[Name, int, str], ...] = ()
    by_tokens: bool = False


class RuleTable:
    """The rules of requests, by key, endpoint and user.

    Args:
        limits: of endpoints, by name.
    """

    def __init__(self, limits: Mapping[str, Sequence[EndpointLimit]]) -> None:
        self._limits = limits
        self._by_user = {name for name, found in limits.items() if any(limit.per == "user" for limit in found)}
        # With the key of which they were made: a changed one has the same digest.
        self._known: dict[tuple[str, str, str | None], tuple[Key | None, Rules | None]] = {}

    def of(self, key: Key | None, endpoint: str, user: str | None) -> Rules | None:
        """The rules of a request; None if it has none.

        Args:
            key: who asks; None: no key is needed.
            endpoint: the name of what is asked.
            user: the user that the request names.
        """
        if endpoint not in self._by_user:
            user = None
        name = ("" if key is None else key.digest, endpoint, user)
        known = self._known.get(name)
        if known is not None and known[0] is key:
            return known[1]
        if len(self._known) >= _KEPT:
            self._known.clear()
        made = _rules(key, endpoint, self._limits.get(endpoint, ()), user)
        self._known[name] = key, made
        return made


def _rules(key: Key | None, endpoint: str, limits: Sequence[EndpointLimit], user: str | None) -> Rules | None:
    windows: list[Rule] = []
    concurrent: list[tuple[Name, int, str]] = []
    for limit, subject, name in _subjects(key, endpoint, limits, user):
        numbers: tuple[tuple[Kind, float | None], ...] = (
            ("requests", limit.requests),
            ("tokens", limit.tokens),
            ("cost", limit.cost),
        )
        for kind, most in numbers:
            if most is not None:
                windows.append(Rule(name_of(kind, limit.window, *name), kind, most, int(most), limit.window, subject))
        if limit.concurrent is not None:
            concurrent.append((name_of("running", *name), limit.concurrent, subject))
    if not windows and not concurrent:
        return None
    return Rules(tuple(windows), tuple(concurrent), by_tokens=any(rule.kind == "tokens" for rule in windows))


def _subjects(
    key: Key | None, endpoint: str, limits: Sequence[EndpointLimit], user: str | None
) -> Iterator[tuple[Limit, str, tuple[str, ...]]]:
    """The limits that hold: each with whose it is, for the error, and the parts of its name."""
    if key is not None:
        for limit in key.limits:
            yield limit, f"The key '{key.name}'", ("key", key.digest)
    for asked in limits:
        if asked.per == "endpoint":
            yield asked, f"The endpoint '{endpoint}'", ("endpoint", endpoint)
        elif asked.per == "key" and key is not None:
            yield asked, f"The key '{key.name}'", ("endpoint-key", endpoint, key.digest)
        elif asked.per == "user" and user is not None:
            yield asked, "The user", ("endpoint-user", endpoint, user)


def estimated_tokens(request: Request) -> int:
    """The most tokens that a request may take, as far as it is known without a tokenizer.

    A prompt counts by its length, an answer with the most that the request allows. Images count nothing until the
    answer has sent its usage.
    """
    if isinstance(request, Generate):
        answer = request.stopping.max_new_tokens or 0
        if answer and (request.n > 1 or request.best_of is not None):
            answer *= max(request.n, request.best_of or 1)
        prompts: Sequence[TextPrompt | TokensPrompt | ChatPrompt] = request.prompts
    elif isinstance(request, Embed):
        answer, prompts = 0, request.inputs
    else:
        return 0
    for prompt in prompts:
        if isinstance(prompt, ChatPrompt):
            length = 0
            for message in prompt.messages:
                content = message.content
                if isinstance(content, str):
                    length += len(content)
                elif content is not None:
                    length += sum([len(part.text) for part in content if isinstance(part, TextPart)])
            answer += -(-length // _BYTES_PER_TOKEN)
        elif isinstance(prompt, TextPrompt):
            answer += -(-len(prompt.text) // _BYTES_PER_TOKEN)
        else:
            answer += len(prompt.ids)
    return answer
