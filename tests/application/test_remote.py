"""`gateway serve --backend URL`: the probe's result becomes the configuration."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.app import create_app
from gateway.config import ConfigError, parse
from gateway.listed_models import probed, with_listed
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


async def test_an_endpoint_picker_in_front_names_the_server_in_a_header() -> None:
    """The header that Envoy sends on for a picker of the Gateway API Inference Extension."""
    inner, _ = scripted("echo")
    header = "x-gateway-destination-endpoint"
    chat = {"model": "t", "messages": [{"role": "user", "content": "hello there"}]}
    async with upstream(lambda _: (response(b"{}", "500 Broken"),)) as broken, listening(inner) as port:
        urls = f'urls = ["{broken.url}/v1", "http://127.0.0.1:{port}/v1"]\nhealth_interval = 3600.0\n'
        backend = f'[backends.far]\nkind = "openai"\n{urls}retries = {{ attempts = 1 }}\n'
        entity = 'served_entities = [{ name = "t", backend = "far", model = "echo" }]'
        config = f'[server]\nendpoint_picker_header = "{header}"\n{backend}[endpoints.t]\n{entity}\n'
        async with running(create_app(parse(config))) as client:
            for destination, asked in ((f"127.0.0.1:{port}", 0), (broken.url.removeprefix("http://"), 1)):
                for path in ("/v1/chat/completions", "/v1/messages"):
                    answer = await client.post(path, json=chat | {"max_tokens": 9}, headers={header: destination})
                    assert answer.status_code == 200
                before = [each for each in broken.asked if not each.line.startswith("GET ")]
                assert bool(before) == bool(asked)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "path"), [("openai", "/v1"), ("tgi", ""), ("mindie-openai", "/v1"), ("triton", "")])
async def test_a_gateway_over_a_gateway_lists_its_context_lengths(kind: str, path: str) -> None:
    inner, _ = scripted("echo", "flaky")
    async with listening(inner) as port:
        far = f'[backends.far]\nkind = "{kind}"\nurl = "http://127.0.0.1:{port}{path}"\n'
        text = f'{far}models = {{ b = "flaky" }}\n[endpoints]\n'
        for line in (
            'a = { served_entities = [{ name = "a", backend = "far", model = "echo" }] }',
            'b = { served_entities = [{ name = "b", backend = "far" }] }',
        ):
            text += f"{line}\n"
        async with running(create_app(parse(text))) as client:
            listed = {each["id"]: each.get("max_model_len") for each in (await client.get("/v1/models")).json()["data"]}
            # Triton's protocol has no field for it.
            assert listed == dict.fromkeys("ab", None if kind == "triton" else 4096)
            assert (await client.get("/v1/models/a")).json().get("max_model_len") == listed["a"]


async def test_a_web_page_in_the_place_of_an_answer_is_named() -> None:
    async with upstream(lambda _: (response(b"<html>", type="text/html"),)) as there:
        backend = f'[backends.far]\nkind = "openai"\nurl = "{there.url}/v1"\n'
        text = f'{backend}[endpoints.t]\nserved_entities = [{{ name = "t", backend = "far" }}]\n'
        async with running(create_app(parse(text))) as client:
            chat = {"model": "t", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
            answer = await client.post("/v1/messages", json=chat)
    error = "The backend's answer is not of its protocol: it is a web page (text/html)."
    assert answer.status_code == 502
    assert answer.json() == {
        "type": "error",
        "error": {"type": "api_error", "message": error},
        "request_id": answer.headers["request-id"],
    }


@pytest.mark.parametrize(("path", "hint"), [("", "has `url` to end in /v1?"), ("/v1", r"name them as endpoints")])
async def test_a_server_that_lists_no_models_may_have_another_url(path: str, hint: str) -> None:
    async with upstream(lambda _: (response(b"{}", "404 Not Found"),)) as there:
        config = parse(f'[backends.far]\nkind = "openai"\nurl = "{there.url}{path}"\n')
        with pytest.raises(ConfigError, match=f"backends.far: it lists no models; {hint}"):
            await asyncio.to_thread(with_listed, config)


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


@pytest.mark.slow
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
