"""Limits of an API key or an endpoint, and prices of a served entity."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from gateway.config.base import Count, Section

Window = Literal["minute", "hour", "day", "month"]
"""`minute` and `hour` slide: at most the limit in any 60 seconds, or in any 60 minutes. `day` and `month` are those of
the calendar, in UTC.
"""

BILLION = 1_000_000_000
"""Costs are counted in billionths of the prices' currency."""

# The upper bounds are for infinity alone, which costs in integers cannot express.
Amount = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
_Rate = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Limit(Section, frozen=True):
    """At most so much in a window; what is None is not limited.

    Attributes:
        requests: that are answered, whatever becomes of them.
        tokens: of prompts and answers together. Until an answer has ended, its prompt counts by estimate and its answer
            with the most that the request allows.
        cost: in the currency of the prices; counted when an answer has ended.
        concurrent: requests at the same time, of all workers; it has no window.
        window: of requests, tokens and cost.
    """

    requests: Count | None = None
    tokens: Count | None = None
    cost: Amount | None = None
    concurrent: Count | None = None
    window: Window = "minute"

    def __post_init__(self) -> None:
        if self.requests is None and self.tokens is None and self.cost is None and self.concurrent is None:
            raise ValueError("a limit needs one of requests, tokens, cost and concurrent")


class EndpointLimit(Limit, frozen=True):
    """A limit of an endpoint.

    Attributes:
        per: "endpoint": of all requests together; "key": of each API key; "user": of each user that requests name.
    """

    per: Literal["endpoint", "key", "user"] = "endpoint"

    @property
    def is_rate(self) -> bool:
        """Whether it is one by the minute and nothing else, as Databricks' clients set."""
        return self.window == "minute" and self.cost is None and self.concurrent is None


class Price(Section, frozen=True):
    """What a million tokens cost, in any currency, the same everywhere.

    Attributes:
        prompt: tokens of the prompt.
        cached: tokens of the prompt that the model had in its cache; None: like the others.
        completion: tokens of the answer.
    """

    prompt: _Rate = 0.0
    cached: _Rate | None = None
    completion: _Rate = 0.0

    def of(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
        """The cost of an answer with so many tokens, in billionths; `cached_tokens` are among `prompt_tokens`."""
        cached = self.prompt if self.cached is None else self.cached
        millions = self.prompt * (prompt_tokens - cached_tokens) + cached * cached_tokens
        # An integer: sums of costs are then the same in any order, and in any place.
        return round((millions + self.completion * completion_tokens) * (BILLION / 1_000_000))
