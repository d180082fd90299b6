"""The admin API of native models: sleep, wake-up and LoRA adapters over HTTP, and what clients get meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForImageTextToText

from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity, ServerSection
from tests.application.test_embeddings import all_ready
from tests.backends.native.engine.lora import folders
from tests.backends.native.test_controls import TARGETS, WEIGHTS
from tests.gateway.serving import running

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ADMIN = {"authorization": "Bearer root"}
GUEST = {"authorization": "Bearer guest"}
PATHS = ("/sleep", "/wake_up", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")


def chat(model: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return {"model": model, "messages": messages, "max_tokens": 12, "temperature": 0}


async def test_models_are_managed_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_KEYS", "root")
    monkeypatch.setenv("CLIENT_KEYS", "guest")
    model = AutoModelForImageTextToText.from_pretrained(WEIGHTS, local_files_only=True, dtype=torch.float32)
    folders.save(tmp_path / "loras" / "a", model, TARGETS, 0)
    native = {"kind": "native", "engine": "inprocess", "threads": 1, "dtype": "float32", "device": "cpu"}
    app = create_app(
        Config(
            server=ServerSection(admin_keys_env="ADMIN_KEYS", keys_env="CLIENT_KEYS"),
            backends={"n": native | {"lora_folder": str(tmp_path / "loras")}, "s": {"kind": "scripted"}},
            endpoints={
                "demo": Endpoint(served_entities=(ServedEntity(name="n", backend="n"),)),
                "toy": Endpoint(served_entities=(ServedEntity(name="s", backend="s", model="echo"),)),
                "tuned": Endpoint(served_entities=(ServedEntity(name="t", backend="n", model="x"),)),
                "both": Endpoint(
                    served_entities=(
                        ServedEntity(name="n", backend="n"),
                        ServedEntity(name="s", backend="s", model="echo", traffic_percentage=0),
                    )
                ),
            },
        )
    )
    async with running(app) as client:
        await all_ready(app)
        await _only_admins(client)
        await _lora_adapters(client)
        await _sleep(client)


async def _only_admins(client: httpx.AsyncClient) -> None:
    for path in PATHS:
        for headers in ({}, GUEST):
            refused = await client.post(path, json={"lora_name": "x", "lora_path": "a"}, headers=headers)
            assert refused.status_code in (401, 403), path
    assert (await client.get("/is_sleeping")).status_code == 401
    assert (await client.get("/sleep", headers=ADMIN)).status_code == 405


async def _lora_adapters(client: httpx.AsyncClient) -> None:
    async def change(what: str, **body: Any) -> tuple[int, str]:
        reply = await client.post(f"/v1/{what}_lora_adapter", json={"model": "demo"} | body, headers=ADMIN)
        return reply.status_code, reply.text

    async def ask_tuned() -> httpx.Response:
        return await client.post("/v1/chat/completions", json=chat("tuned"), headers=GUEST)

    plain = (await client.post("/v1/chat/completions", json=chat("demo"), headers=GUEST)).json()
    assert (await client.post("/v1/chat/completions", json=chat("x"), headers=GUEST)).status_code == 404
    missing = await ask_tuned()
    assert (missing.status_code, "has no LoRA adapter 'x'" in missing.text) == (404, True)
    loaded = await change("load", lora_name="x", lora_path="a")
    assert loaded == (200, "Success: LoRA adapter 'x' added successfully.")
    answer = await client.post("/v1/chat/completions", json=chat("x"), headers=GUEST)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"] != plain["choices"][0]["message"]
    assert (await ask_tuned()).json()["choices"] == answer.json()["choices"]
    by_id = {"inputs": "Hi", "parameters": {"max_new_tokens": 2, "adapter_id": "x"}}
    assert (await client.post("/generate", json=by_id, headers=GUEST)).status_code == 200
    for body, words in (
        ({"lora_name": "x", "lora_path": "a"}, "is loaded already"),
        ({"lora_name": "demo", "lora_path": "a"}, "An endpoint is called 'demo'"),
        ({"lora_name": "y", "lora_path": "../.."}, "no such folder"),
        ({"lora_name": "y", "lora_path": "/etc"}, "no such folder"),
        ({"lora_name": "y"}, "lora_path"),
        ({"lora_name": "y", "lora_path": "a", "model": "toy"}, "has no native model"),
    ):
        status, text = await change("load", **body)
        assert (400 <= status < 500, words in text) == (True, True), text
    assert (await change("load", lora_name="x", lora_path="a", load_inplace=True, model="demo"))[0] == 200
    assert (await change("unload", lora_name="x"))[0] == 200
    assert (await change("unload", lora_name="x"))[0] == 400
    assert (await client.post("/v1/chat/completions", json=chat("x"), headers=GUEST)).status_code == 404
    assert (await ask_tuned()).status_code == 404, "the base model does not answer instead"


async def _sleep(client: httpx.AsyncClient) -> None:
    async def sleeping() -> Any:
        return (await client.get("/is_sleeping", headers=ADMIN)).json()

    assert await sleeping() == {"is_sleeping": False, "levels": {"n": 0}}
    assert (await client.post("/sleep?level=3", headers=ADMIN)).status_code == 422  # TGI is nearest to the path
    assert (await client.post("/sleep?model=toy", headers=ADMIN)).status_code == 404
    assert (await client.post("/sleep?level=2&model=demo", headers=ADMIN)).content == b""
    assert await sleeping() == {"is_sleeping": True, "levels": {"n": 2}}
    for path, body in (
        ("/v1/chat/completions", chat("demo")),
        ("/v1/messages", chat("demo")),
        ("/generate", {"inputs": "Hi"}),
        ("/v2/models/demo/generate", {"text_input": "Hi"}),
    ):
        refused = await client.post(path, json=body, headers=GUEST)
        assert (refused.status_code, refused.headers["retry-after"], "asleep" in refused.text) == (503, "5", True), path
    other = await client.post("/v1/chat/completions", json=chat("both"), headers=GUEST)
    assert (other.status_code, other.headers["served-model-name"]) == (200, "s")
    assert (await client.get("/health/ready")).status_code == 200
    assert (await client.post("/wake_up", headers=ADMIN)).status_code == 200
    assert await sleeping() == {"is_sleeping": False, "levels": {"n": 0}}
    assert (await client.post("/v1/chat/completions", json=chat("demo"), headers=GUEST)).status_code == 200
