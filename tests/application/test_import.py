"""An imported configuration serves: `gateway import`, then `gateway serve`, over servers of several protocols."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from gateway.cli import main
from tests.gateway.processes import start, until
from tests.gateway.serving import listening, scripted

CONFIG = """
model_list:
  - model_name: chat
    litellm_params: {{model: openai/echo, api_base: "http://127.0.0.1:{port}/v1", api_key: none, weight: 1}}
  - model_name: chat
    litellm_params: {{model: hosted_vllm/echo, api_base: "http://127.0.0.1:{port}", weight: 3, rpm: 600}}
  - model_name: claude
    litellm_params: {{model: anthropic/echo, api_base: "http://127.0.0.1:{port}", api_key: os.environ/THEIRS}}
  - model_name: brick
    litellm_params: {{model: databricks/echo, api_base: "http://127.0.0.1:{port}/serving-endpoints", api_key: none}}
  - model_name: zephyr
    litellm_params: {{model: huggingface/any/name, api_base: "http://127.0.0.1:{port}"}}
  - model_name: flaky
    litellm_params: {{model: openai/echo, api_base: "http://127.0.0.1:9/v1", api_key: none}}
  - model_name: lost
    litellm_params: {{model: bedrock/x}}
router_settings:
  num_retries: 0
  timeout: 60
  fallbacks: [{{"flaky": ["chat"]}}]
  model_group_alias: {{"gpt-4": "chat"}}
general_settings:
  master_key: os.environ/OURS
"""
CHAT = {"max_tokens": 20, "messages": [{"role": "user", "content": "one two"}]}


@pytest.mark.slow
async def test_an_imported_configuration_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "sk-1")
    monkeypatch.setenv("THEIRS", "sk-2")
    source, file, log = tmp_path / "config.yaml", tmp_path / "gateway.toml", tmp_path / "log"
    app, _ = scripted("echo")
    async with listening(app) as port:
        source.write_text(CONFIG.format(port=port))
        done = CliRunner().invoke(main, ["import", "litellm", str(source), "--output", str(file)])
        assert done.exit_code == 0
        lost = [line.removeprefix("not carried over: ") for line in done.stderr.splitlines()]
        assert lost[0].startswith("line 6: model_list[1].litellm_params.rpm: other deployments of 'chat' have none")
        assert lost[1].startswith("line 16: model_list[6].litellm_params.model: ")
        assert CliRunner().invoke(main, ["check", str(file)]).exit_code == 0
        gateway = await asyncio.to_thread(start, "--config", str(file), log=log)
        try:
            await asyncio.to_thread(until, gateway.greets, log)
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
                assert (await client.post("/v1/chat/completions", json=CHAT | {"model": "chat"})).status_code == 401
                client.headers["authorization"] = "Bearer sk-1"
                for model in ("chat", "gpt-4", "claude", "brick", "zephyr", "flaky"):
                    answer = await client.post("/v1/chat/completions", json=CHAT | {"model": model})
                    assert answer.status_code == 200, (model, answer.text)
                    assert "one two" in answer.json()["choices"][0]["message"]["content"]
                missing = await client.post("/v1/chat/completions", json=CHAT | {"model": "lost"})
                assert missing.status_code == 404
        finally:
            code = await asyncio.to_thread(gateway.stop)
    assert code == 0, log.read_text()


def test_an_import_says_what_it_left_and_replaces_no_file(tmp_path: Path) -> None:
    run, output = CliRunner(), tmp_path / "gateway.toml"
    words = ["import", "vllm", "vllm serve owner/model --max-model-len 4k --enforce-eager --seed 3"]
    done = run.invoke(main, words)
    assert done.exit_code == 0
    assert "context_length = 4000" in done.stdout
    assert done.stderr == "not carried over: line 1: seed: each request has a seed of its own, or none\n"
    # Without quotes, too.
    assert run.invoke(main, ["import", "vllm", *words[2].split()]).output == done.output
    assert run.invoke(main, [*words, "--output", str(output)]).exit_code == 0
    assert output.read_text() == done.stdout
    again = run.invoke(main, [*words, "--output", str(output)])
    assert again.exit_code == 1
    assert again.stderr.endswith(f"Error: {output} is there already, and is not replaced\n")


@pytest.mark.parametrize("kind", ["litellm", "vllm", "mindie"])
def test_a_file_of_which_nothing_can_be_served_is_an_error(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text('{"model_list": [], "BackendConfig": {}}')
    done = CliRunner().invoke(main, ["import", kind, str(file)])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"Error: {file}: ")
