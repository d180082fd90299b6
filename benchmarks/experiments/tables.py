"""The other tables: whole reports, the sample-ratio check, the early stop, and quantiles."""

from __future__ import annotations

from math import exp, inf, log

import numpy as np

from benchmarks.experiments.cells import MORE_ARMS, SPLITS
from benchmarks.experiments.looks import look, look_as_before, sides_of
from benchmarks.experiments.simulate import ALPHA, EQUAL, in_words
from benchmarks.experiments.traffic import (
    Draw,
    Requests,
    Traffic,
    draw,
    lognormal,
    pareto,
    successes,
    time_outs,
)
from gateway.experiments.guardrail import EARLY, FIRST_BET
from gateway.experiments.metrics import METRICS
from gateway.experiments.statistics.comparison import metric_alphas
from gateway.experiments.statistics.confidence import Array, Interval, Mean, sample_ratio_mismatch
from gateway.experiments.statistics.evalue import fails_more
from gateway.experiments.statistics.histogram import (
    BINS,
    RATIO,
    SHORTEST,
    UNFINISHED,
    Asked,
    log_design_effect,
    quantile_ratios,
)
from gateway.routing.assignment import BUCKETS


def print_families(runs: int, requests: int) -> None:
    """Whether any interval of a report ever misses its truth, over all metrics and arms; and the same as before."""
    columns = [
        "case",
        "any interval missed",
        "with all of alpha for each",
        "before, with all of alpha for each",
        "before, a ninth",
    ]
    print(f"\n## All metrics of a report\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    alphas = metric_alphas(METRICS, ("success", "latency"), ALPHA)
    equal: dict[str, Draw] = {"rate": successes(0.97), "time": lognormal(1.0), "number": lognormal(0.5)}
    worse: dict[str, Draw] = {"success": successes(0.97, 0.94), "latency": lognormal(1.0, 0.1)}
    truths = {"success": (-0.03, -0.03), "latency": (log(1.1), 0.1 * exp(0.5))}  # of logarithms, and of seconds
    cases = [(f"equal arms, {name}", shares, False) for name, shares in (SPLITS | MORE_ARMS).items()]
    cases += [(f"success and latency are worse, {name}", SPLITS[name], True) for name in ("50/50", "90/10")]
    for title, shares, has_effect in cases:
        missed = np.zeros(4)
        for run in range(runs):
            source = np.random.default_rng((6, run))
            drawn = draw(source, Traffic(requests, (shares,)), successes(0.97))
            said = np.zeros(4, bool)
            for metric in METRICS:
                # Independent metrics are the worst case for the chance of any miss.
                values = (worse if has_effect else {}).get(metric.name, equal[metric.kind])
                found = values(source, drawn.arms, drawn.values, source.standard_normal(requests))
                plain = drawn._replace(values=found)
                each = drawn._replace(values=np.log(found)) if metric.kind == "time" else plain
                truth, of_means = truths.get(metric.name, (0.0, 0.0)) if has_effect else (0.0, 0.0)
                for arm in range(1, len(shares)):
                    now = look(each, arm, rate=metric.kind == "rate")
                    asked = [(now, truth, alphas[metric.name]), (now, truth, ALPHA)]
                    if len(shares) == 2:
                        before = look_as_before(plain, arm)
                        asked += [(before, of_means, ALPHA), (before, of_means, EQUAL)]
                    for number, (looks, true, alpha) in enumerate(asked):
                        said[number] |= looks.excluded(true, alpha / (len(shares) - 1)).any()
            missed += said
        cells = [f"{each / runs:.3f}" for each in missed]
        print(f"| {title} | {' | '.join(cells if len(shares) == 2 else [*cells[:2], '-', '-'])} |", flush=True)


def print_sample_ratio(runs: int, requests: int) -> None:
    """False alarms and found losses of the sample-ratio check."""
    print("\n## Sample-ratio mismatch\n\n| case | alarms | requests for 80 % |\n|---|---|---|")
    named = SPLITS | {"98/2": (0.98, 0.02)} | MORE_ARMS
    cases = [(name, shares, users, 0.0) for name, shares in named.items() for users in (0, 300, 5000)]
    cases += [(name, SPLITS[name], 0, lost) for name in ("50/50", "90/10") for lost in (0.05, 0.2, 0.36)]
    for name, shares, users, lost in cases:
        at = []
        for run in range(runs):
            source = np.random.default_rng((7, run))
            drawn = draw(source, Traffic(requests, (shares,), users), lambda source, arms, *_: source.random(len(arms)))
            at.append(_alarm(drawn, np.array(shares), lost))
        alarms = np.isfinite(at).mean()
        title = f"{name}, {users or 'each request its own'} user{'s' if users else ''}" + (
            f", {lost:.0%} of an arm lost" if lost else ""
        )
        print(f"| {title} | {alarms:.3f} | {in_words(float(np.quantile(at, 0.8, method='higher')))} |", flush=True)


def _alarm(drawn: Requests, shares: Array, lost: float) -> float:
    """After how many requests the check raises an alarm."""
    kept = (drawn.arms != 1) | (drawn.values >= lost)
    arms, buckets = drawn.arms[kept], drawn.buckets[kept]
    for now in np.unique(np.geomspace(100, len(arms), 40).astype(int)):
        counts = np.bincount(arms[:now] * BUCKETS + buckets[:now], minlength=len(shares) * BUCKETS)
        if sample_ratio_mismatch(counts.reshape(len(shares), BUCKETS).astype(float), shares, 0.001):
            return float(now)
    return inf


def print_guardrail(runs: int) -> None:
    """Requests of an arm until the early stop of `guardrail = { worse_than = 0.02 }`."""
    print("\n## Early stop\n\n| fails | share | users | stopped | requests: median | 90 % |\n|---|---|---|---|---|---|")
    cases = [(fails, share, 0) for share in (0.5, 0.05) for fails in (1.0, 0.5, 0.2, 0.1)]
    cases += [(0.01, share, users) for share in (0.5, 0.05, 0.01) for users in (0, 50, 300, 1000)]
    cases += [(0.03, share, users) for share in (0.5, 0.05) for users in (0, 300)]
    for fails, share, users in cases:
        values = successes(0.99, 1 - fails, spread=0.0 if fails > 0.05 else 1.0)
        at = [
            _stop(draw(np.random.default_rng((8, run)), Traffic(6000, ((1 - share, share),), users), values))
            for run in range(runs)
        ]
        median, most = (in_words(float(np.quantile(at, q, method="higher"))) for q in (0.5, 0.9))
        print(
            f"| {fails:.0%} | {share:.0%} | {users or '-'} | {np.isfinite(at).mean():.3f} | {median} | {most} |",
            flush=True,
        )


def _stop(requests: Requests) -> float:
    """How many requests the arm had when it was stopped. Evidence grows only with its failures."""
    votes = np.zeros((2, 2, BUCKETS))
    after = 0
    for number, (arm, bucket, success) in enumerate(zip(requests.arms, requests.buckets, requests.values, strict=True)):
        votes[arm, 0, bucket] += 1
        votes[arm, 1, bucket] += success
        if arm and not success and number >= after:
            if fails_more(votes[0], votes[1], 0.02, EARLY * FIRST_BET * ALPHA):
                return float(votes[1, 0].sum())
            after = number + number // 100
    return inf


def print_quantiles(runs: int, requests: int) -> None:
    """Whether the bounds on ratios of quantiles hold, and how wide they are at the end."""
    print("\n## Quantiles\n\n| case | p50 missed | p95 missed | p50 within | p95 within |\n|---|---|---|---|---|")
    for title, values, users in (
        ("lognormal, sigma 1", lognormal(1.0), 0),
        ("1 % take 60 times as long", time_outs(0.01, 60), 0),
        ("Pareto 1.8", pareto(1.8), 0),
        ("lognormal, sigma 1", lognormal(1.0), 1000),
    ):
        for name, shares in SPLITS.items():
            missed, width = np.zeros(2), np.zeros(2)
            for run in range(runs):
                drawn = draw(np.random.default_rng((9, run)), Traffic(requests, (shares,), users), values)
                found = _ratios(drawn)
                missed += [any(not low <= 1 <= high for _, low, high in each) for each in found]
                width += [log(each[-1].high / max(each[-1].low, 1e-9)) / 2 for each in found]
            within = " | ".join(f"±{exp(each / runs) - 1:.0%}" if each < runs else "more" for each in width)
            shares_missed = " | ".join(f"{each:.3f}" for each in missed / runs)
            print(f"| {title}{', 1000 users' if users else ''}, {name} | {shares_missed} | {within} |", flush=True)


def _ratios(drawn: Requests) -> list[list[Interval]]:
    bins = np.clip(np.floor(np.log(drawn.values / SHORTEST) / log(RATIO)).astype(int) + 1, 0, UNFINISHED)
    found: list[list[Interval]] = [[], []]
    sides = sides_of(drawn._replace(values=np.log(drawn.values)), 1)
    for now in np.unique(np.geomspace(100, len(bins), 20).astype(int)):
        counts = [np.bincount(bins[:now][drawn.arms[:now] == arm], minlength=BINS).astype(float) for arm in (0, 1)]
        means = (Mean(0.0, *(float(each[arm, now - 1]) for each in sides[1:])) for arm in (0, 1))
        effects = [log_design_effect(*each) for each in zip(counts, means, strict=True)]
        for each, q in zip(found, (0.5, 0.95), strict=True):
            old, new = (Asked(count, q, ALPHA, effect) for count, effect in zip(counts, effects, strict=True))
            each.extend(quantile_ratios([(old, new)]))
    return found
