"""The process of a template, and chats whose client leaves."""

from __future__ import annotations

import asyncio
import json
import select
import signal
from contextlib import suppress

import pytest

from backends.chat_template.child import RENDERED
from backends.chat_template.limits import Limits
from backends.chat_template.process import TemplateProcess
from backends.process import is_stopped

SETUP = json.dumps({"sources": {"default": "{{ messages[0].content * 100_000 }}"}, "variables": {}}).encode()


def chat(content: str) -> bytes:
    return json.dumps({"messages": [{"content": content}], "tools": None, "longest": 1 << 20}).encode()


@pytest.mark.parametrize("turns", range(5))
async def test_a_chat_that_is_cancelled_when_its_text_arrives_leaves_nothing_to_the_next_one(turns: int) -> None:
    """In whatever turn of the event loop: the next chat reads the rest of that text away, in the same process."""
    process = TemplateProcess(SETUP, Limits())
    await process.ask(chat("a"))
    child = process._child
    assert child is not None
    child._process.send_signal(signal.SIGSTOP)
    while not is_stopped(child._process):  # noqa: ASYNC110 - the kernel's
        await asyncio.sleep(0.001)
    leaving = asyncio.create_task(process.ask(chat("b")))
    for _ in range(5):  # it is sent, and waited for
        await asyncio.sleep(0)
    child._process.send_signal(signal.SIGCONT)
    assert select.select([child._socket], [], [], 60)[0]  # the event loop stands still: it has read nothing yet
    for _ in range(turns):
        await asyncio.sleep(0)
    leaving.cancel()
    with suppress(asyncio.CancelledError):
        await leaving
    assert await process.ask(chat("c")) == (RENDERED, b"c" * 100_000)
    assert process._child is child
    process.close()
