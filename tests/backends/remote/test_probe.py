"""Detection of a server's kind by its listings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.remote.options import RemoteOptions
from backends.remote.probe import Found, list_models, probe
from schemas.errors import BackendUnavailable
from tests.faults.upstream import Asked, Close, Step, response, upstream
from tests.gateway.serving import listening, scripted

SERVERS: dict[str, tuple[str, Any, str, tuple[str, ...]]] = {
    "openai": ("GET /v1/models", {"data": [{"id": "a"}, {"id": "b"}]}, "/v1", ("a", "b")),
    "tgi": ("GET /info", {"model_id": "org/a", "max_total_tokens": 5}, "", ("org/a",)),
    "mindie": ("GET /info", {"models": [{"model_id": "a"}], "version": "1"}, "", ("a",)),
    "triton": ("POST /v2/repository/index", [{"name": "a", "state": "READY"}], "", ("a",)),
    "databricks": ("GET /api/2.0/serving-endpoints", {"endpoints": [{"name": "a"}]}, "", ("a",)),
}


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
async def test_a_server_is_detected_by_its_listing(kind: str, suffix: str) -> None:
    line, answer, base, models = SERVERS[kind]

    def play(asked: Asked) -> tuple[Step, ...]:
        if asked.line == f"{line} HTTP/1.1":
            return (response(json.dumps(answer).encode()),)
        return (response(b"<html>", "404 Not Found", "text/html"),)

    async with upstream(play) as there:
        assert await probe(RemoteOptions(url=there.url + suffix)) == Found(kind, there.url + base, models)


async def test_a_gateway_of_this_project_is_detected_as_openai() -> None:
    app, _ = scripted("echo", "many")
    async with listening(app) as port:
        url = f"http://127.0.0.1:{port}"
        assert await probe(RemoteOptions(url=url)) == Found("openai", f"{url}/v1", ("echo", "many"))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((response(b"{}", "401 Unauthorized"),), "wants a key"),
        ((response(b"[1, null, {}]"),), "no kind"),
        ((response(b"\xff"),), "no kind"),
        ((response(b'{"data":[{"id":7}]}'),), "no kind"),
        ((Close(),), "closes connections"),
    ],
)
async def test_a_server_of_no_known_kind_is_refused(
    steps: tuple[Step, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "secret")
    async with upstream(lambda _: steps) as there:
        with pytest.raises(BackendUnavailable, match=words):
            await probe(RemoteOptions(url=there.url, api_key_env="KEY"))
        assert there.asked[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("kind", [*SERVERS, "anthropic", "tgi-0.9"])
async def test_a_server_of_a_known_kind_lists_its_models(kind: str) -> None:
    line, answer, base, models = SERVERS[{"anthropic": "openai", "tgi-0.9": "tgi"}.get(kind, kind)]
    base = "" if kind == "anthropic" else base
    async with upstream(lambda _: (response(json.dumps(answer).encode()),)) as there:
        assert await list_models(kind, RemoteOptions(url=there.url + base)) == models
        assert [asked.line for asked in there.asked] == [f"{line} HTTP/1.1"]
