"""The grid: what is simulated, by table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log

from benchmarks.experiments.traffic import (
    Draw,
    Traffic,
    diurnal,
    drift,
    lognormal,
    outage,
    pareto,
    successes,
    time_outs,
)

SPLITS = {"50/50": (0.5, 0.5), "90/10": (0.9, 0.1), "99/1": (0.99, 0.01)}
MORE_ARMS = {
    "98/1/1": (0.98, 0.01, 0.01),
    "3 arms": (1 / 3,) * 3,
    "5 arms": (1 / 5,) * 5,
    "8 arms": (1 / 8,) * 8,
}
USERS = (50, 300, 1000, 5000)


@dataclass(frozen=True)
class Cell:
    """What is simulated.

    Attributes:
        values: of requests.
        traffic: how they come.
        truth: the difference of the rates, or of the mean logarithms, of each other arm to the control.
        rate: whether values are 0 and 1; else seconds, compared by their logarithms.
        seconds: the difference of the means in seconds, if it is not `truth`.
    """

    title: str
    values: Draw
    traffic: Traffic
    truth: float = 0.0
    rate: bool = False
    seconds: float | None = None

    @property
    def truth_of_means(self) -> float:
        """The difference of the means of the values as they are."""
        return self.truth if self.seconds is None else self.seconds


def equal_arms(requests: int) -> list[Cell]:
    """Arms that are alike, at every split."""
    rates = {f"success {p}": successes(p) for p in (0.5, 0.9, 0.99, 0.999, 1.0)}
    times = {f"lognormal, sigma {sigma}": lognormal(sigma) for sigma in (0.5, 1.0, 1.5, 2.0)}
    times |= {
        "Pareto 1.8": pareto(1.8),
        "1 % take 60 times as long": time_outs(0.01, 60),
        "0.1 % take 600 times as long": time_outs(0.001, 600),
    }
    return [
        Cell(f"{title}, {name}", values, Traffic(requests, (shares,)), rate=title in rates)
        for title, values in (rates | times).items()
        for name, shares in (SPLITS | MORE_ARMS).items()
    ]


def real_effects(requests: int) -> list[Cell]:
    """An arm that is worse or better."""
    two = {name: Traffic(requests, (SPLITS[name],)) for name in ("50/50", "90/10")}
    rates = ((0.99, 0.98), (1.0, 0.99), (0.999, 0.99), (0.99, 0.96), (0.96, 0.99), (0.9, 0.855), (0.5, 0.45))
    found = [
        Cell(f"success {a} to {b}, {name}", successes(a, b), at, b - a, rate=True)
        for a, b in rates
        for name, at in two.items()
    ]
    found += [
        Cell(
            f"lognormal, sigma {sigma}, {longer:+.0%}, {name}",
            lognormal(sigma, longer),
            at,
            log(1 + longer),
            seconds=longer * exp(sigma**2 / 2),
        )
        for sigma, longer in ((0.5, 0.05), (0.5, 0.1), (0.5, 0.2), (1.0, 0.1), (1.5, 0.5))
        for name, at in two.items()
    ]
    return found + [
        Cell(f"20 % more time-outs, {name}", time_outs(0.01, 60, 0.2), at, 0.002 * log(60), seconds=0.118 * exp(0.125))
        for name, at in two.items()
    ]


def users(requests: int) -> list[Cell]:
    """Few users, of whom 5 % send half of the requests, and who differ in their failure rates or speed."""
    return [
        cell
        for number in USERS
        for name, shares in SPLITS.items()
        for cell in (
            Cell(
                f"success 0.95, {number} users, {name}",
                successes(0.95, spread=1.0),
                Traffic(requests, (shares,), number),
                rate=True,
            ),
            Cell(f"lognormal, sigma 1, {number} users, {name}", lognormal(1.0), Traffic(requests, (shares,), number)),
        )
    ]


def changing(requests: int) -> list[Cell]:
    """Traffic that changes, and splits that do."""
    found = []
    for name, shares in (
        ("50/50", (SPLITS["50/50"],)),
        ("90/10", (SPLITS["90/10"],)),
        ("90/10 then 50/50", ((0.9, 0.1), (0.5, 0.5))),
        ("ramp 1, 5, 20, 50 %", ((0.99, 0.01), (0.95, 0.05), (0.8, 0.2), (0.5, 0.5))),
    ):
        at = Traffic(requests, shares)
        found += [
            Cell(f"outage of both arms, success 0.99, {name}", successes(0.99, level=outage), at, rate=True),
            Cell(f"diurnal failures, success 0.97, {name}", successes(0.97, level=diurnal), at, rate=True),
            Cell(f"failures drift from 3 % to 12 %, {name}", successes(0.97, level=drift), at, rate=True),
            Cell(f"diurnal times, sigma 0.5, {name}", lognormal(0.5, level=diurnal), at),
            Cell(f"times drift to fourfold, sigma 0.5, {name}", lognormal(0.5, level=drift), at),
            Cell(f"times drift, 1000 users, {name}", lognormal(0.5, level=drift), replace(at, units=1000)),
        ]
    return found
