"""Work that is left for later is done together, and whatever happens to other work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backends.cohorts import Steps
from gateway.deferred import DeferredSteps


def noting(done: list[str], name: str) -> Steps:
    done.append(f"{name} 1")
    yield
    done.append(f"{name} 2")


@pytest.mark.parametrize("delay", [0.0, 0.005])
async def test_steps_are_taken_together_later(delay: float) -> None:
    done: list[str] = []
    deferred = DeferredSteps(delay, lambda: done.append("before"), lambda: done.append("after"))
    deferred.add(noting(done, "a"))
    deferred.add(noting(done, "b"))
    deferred.add(noting(done, "c"), at_once=True)
    assert done == ["c 1", "c 2"]
    done.clear()
    await asyncio.sleep(2 * delay)
    assert done == ["before", "a 1", "b 1", "a 2", "b 2", "after"]


async def test_what_waits_is_not_taken_twice() -> None:
    done: list[str] = []
    deferred = DeferredSteps(0.005)
    deferred.add(noting(done, "a"))
    deferred.make()
    deferred.add(noting(done, "b"))
    await asyncio.sleep(0.02)
    assert done == ["a 1", "a 2", "b 1", "b 2"]


async def test_steps_are_taken_though_what_is_before_them_fails() -> None:
    def fail() -> None:
        raise OSError("no space left")

    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    done: list[str] = []
    deferred = DeferredSteps(0.0, fail, lambda: done.append("after"))
    deferred.add(noting(done, "a"))
    await asyncio.sleep(0)
    assert done == ["a 1", "a 2", "after"]
    assert [str(each["exception"]) for each in failures] == ["no space left"]
