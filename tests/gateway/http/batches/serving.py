"""A gateway with batches over scripted models, and what its clients do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from backends.scripted import ScriptedBackend
from gateway.app import create_app
from gateway.config import BatchesSection, ServerSection
from tests.gateway.serving import config, running

ENDED = ("completed", "failed", "expired", "cancelled")
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def batching(
    folder: Path,
    *models: str,
    server: ServerSection | None = None,
    url: str = "http://localhost",
    **settings: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway that keeps batches in a folder."""
    section = BatchesSection(folder=str(folder), **settings)
    served = replace(config(*models or ("echo",), server=server), batches=section)
    async with running(create_app(served, {"s": ScriptedBackend("s")}), url) as client:
        yield client


def line(name: str, body: dict[str, Any] | None = None, url: str = CHAT, **fields: Any) -> str:
    """A line of an input file; its model says its name."""
    body = body or {"model": "echo", "messages": [{"role": "user", "content": f"I am {name}"}]}
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body} | fields)


async def upload(client: httpx.AsyncClient, lines: list[str], **headers: str) -> str:
    """Upload lines; returns the id of the file."""
    form = {"purpose": "batch"}
    content = "\n".join(lines).encode()
    answer = await client.post("/v1/files", data=form, files={"file": ("in.jsonl", content)}, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def begin(client: httpx.AsyncClient, file: str, endpoint: str = CHAT, **headers: str) -> httpx.Response:
    body = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"}
    return await client.post("/v1/batches", json=body, headers=headers)


async def ended(client: httpx.AsyncClient, id: str, **headers: str) -> dict[str, Any]:
    """A batch, once it has ended."""
    while True:
        answer = await client.get(f"/v1/batches/{id}", headers=headers)
        assert answer.status_code == 200, answer.text
        batch: dict[str, Any] = answer.json()
        if batch["status"] in ENDED:
            return batch
        await asyncio.sleep(0.02)


async def answered(client: httpx.AsyncClient, id: str, count: int, **headers: str) -> None:
    """Return once so many lines of a batch are answered."""
    path = f"/v1/batches/{id}"
    while (await client.get(path, headers=headers)).json()["request_counts"]["completed"] < count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def batch_of(client: httpx.AsyncClient, lines: list[str], endpoint: str = CHAT) -> dict[str, Any]:
    """A batch of lines, once it has ended."""
    return await ended(client, (await begin(client, await upload(client, lines), endpoint)).json()["id"])


async def read(client: httpx.AsyncClient, file: str | None) -> dict[str, dict[str, Any]]:
    """The lines of a file of results by their names; each name occurs once."""
    if file is None:
        return {}
    answer = await client.get(f"/v1/files/{file}/content")
    lines = [json.loads(each) for each in answer.text.splitlines()]
    found = {each["custom_id"]: each for each in lines}
    assert len(found) == len(lines)
    return found
