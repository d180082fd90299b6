"""What the metrics and the report say of pairs."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx


async def ends(client: httpx.AsyncClient) -> dict[str, int]:
    """How pairs ended."""
    text = (await client.get("/metrics")).text
    return {
        outcome: int(count)
        for outcome, count in re.findall(r'^gw_pairs_total{.*outcome="(\w+)".*} (\d+)', text, re.MULTILINE)
    }


async def pairs_report(client: httpx.AsyncClient, count: int) -> dict[str, Any]:
    """The report of the pairs, once so many have ended, well or not."""
    for _ in range(10_000):
        if sum((await ends(client)).values()) == count:
            break
        await asyncio.sleep(0.01)
    (found,) = (await client.get("/serving-endpoints/chat/experiment")).json()["paired"]
    assert found["pairs"] + sum(found["not_paired"].values()) == count
    return found


def likelihoods(found: dict[str, Any]) -> list[tuple[str, float, float, float]]:
    return [
        (of["answers_of"], of["by_control"]["mean"], of["by_arm"]["mean"], of["difference"]["mean"])
        for of in found["log_likelihoods"]
    ]
