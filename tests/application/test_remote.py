"""`gateway serve --backend URL`: the probe's result becomes the configuration."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.app import create_app
from gateway.config import ConfigError, parse
from gateway.listed_models import probed
from tests.faults.upstream import Asked, Hang, Step, response, upstream
from tests.gateway.serving import listening, running, scripted


@pytest.mark.slow
async def test_every_protocol_over_a_probed_server() -> None:
    inner, _ = scripted("echo", "flaky")
    async with listening(inner) as port:
        config = await asyncio.to_thread(probed, f"http://127.0.0.1:{port}", None)
        assert list(config.endpoints) == ["echo", "flaky"]
        async with running(create_app(config)) as client:
            models = (await client.get("/v1/models")).json()["data"]
            assert [model["id"] for model in models] == ["echo", "flaky"]
            chat = {"messages": [{"role": "user", "content": "hello there"}]}
            answer = (await client.post("/v1/chat/completions", json={"model": "echo", **chat})).json()
            assert answer["choices"][0]["message"]["content"] == "hello there"
            answer = (await client.post("/serving-endpoints/echo/invocations", json=chat)).json()
            assert answer["choices"][0]["message"]["content"] == "hello there"
            answer = (await client.post("/v2/models/echo/generate", json={"text_input": "hello there"})).json()
            assert answer["text_output"] == "hello there"
            answer = (await client.post("/generate", json={"inputs": "hello there"})).json()
            assert answer["generated_text"] == "hello there"


@pytest.mark.slow
async def test_a_gateway_over_a_gateway_by_tgi_needs_no_name_of_a_model() -> None:
    inner, _ = scripted("echo", "flaky")
    async with listening(inner) as port:
        text = f'[backends.far]\nkind = "tgi"\nurl = "http://127.0.0.1:{port}"\n[endpoints.t]\n'
        for entity, model in (
            ('{ name = "t", backend = "far" }', "echo"),
            ('{ name = "t", backend = "far", model = "flaky" }', "flaky"),
        ):
            async with running(create_app(parse(f"{text}served_entities = [{entity}]\n"))) as client:
                chat = {"model": "t", "messages": [{"role": "user", "content": "hello there"}]}
                answer = (await client.post("/v1/chat/completions", json=chat)).json()
                assert answer["model"] == model
                answer = (await client.post("/generate", json={"inputs": "hello there"})).json()
                assert answer["generated_text"] == "hello there"


async def test_the_configuration_names_the_keys_variable_and_not_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "secret")

    def play(asked: Asked) -> tuple[Step, ...]:
        allowed = asked.headers.get("authorization") == "Bearer secret"
        return (response(b'{"data":[{"id":"a"}]}') if allowed else response(b"", "401 Unauthorized"),)

    async with upstream(play) as there:
        config = await asyncio.to_thread(probed, there.url, "FAR_KEY")
        assert config.backends["remote"]["api_key_env"] == "FAR_KEY"
        assert "secret" not in repr(config)
        with pytest.raises(ConfigError, match="key"):
            await asyncio.to_thread(probed, there.url, None)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "ftp://x"])
def test_a_url_without_a_server_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError):
        probed(url, None)


@pytest.mark.parametrize(
    "line",
    [
        "timeout = 3",
        "url = 3\nmodels = {}",
        'url = "http://x"\ntimeouts = { total = 1.0 }',
        'url = "http://x"\nkey = "k"',
    ],
)
def test_a_wrong_backend_section_is_rejected(line: str) -> None:
    endpoint = '[[endpoints.chat.served_entities]]\nname = "a"\nbackend = "far"\n'
    config = parse(f'[backends.far]\nkind = "openai"\n{line}\n{endpoint}')
    with pytest.raises(ConfigError, match=r"backends\.far"):
        create_app(config)


async def test_an_inexpressible_request_is_rejected_before_the_upstream_is_called() -> None:
    def play(asked: Asked) -> tuple[Step, ...]:
        return (response(b"{}"),) if asked.line.startswith("GET") else (Hang(),)

    async with upstream(play) as there:
        config = parse(
            f'[backends.far]\nkind = "triton"\nurl = "{there.url}"\n'
            '[endpoints.m]\nserved_entities = [{ name = "m", backend = "far" }]\n'
        )
        async with running(create_app(config)) as client:
            chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
            reply = await client.post("/v1/chat/completions", json=chat)
            assert reply.status_code == 400
            assert "chat" in json.loads(reply.content)["error"]["message"]
        assert not [asked for asked in there.asked if asked.line.startswith("POST")]
