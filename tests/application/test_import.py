"""An imported configuration serves: `gateway import`, then `gateway serve`, over servers of several protocols."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from openai import OpenAI

from backends.native import demo
from gateway.app import create_app
from gateway.cli import main
from gateway.config import Config
from tests.gateway.processes import LIMIT, Gateway, serving, start, until
from tests.gateway.serving import endpoint, listening, scripted

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


# --- models of other servers' own engines: the bundled weights lie where their configurations say that the model is

VLLM = """\
#!/bin/bash
export CUDA_VISIBLE_DEVICES=0,1
exec vllm serve {model} --served-model-name toy the-toy --host 127.0.0.1 --port 9000 \\
  --max-model-len 512 --max-num-seqs 8 --dtype float32 --gpu-memory-utilization 0.9 -pp 2 \\
  --enable-auto-tool-choice --tool-call-parser hermes --enable-prefix-caching --api-key $VLLM_API_KEY
"""
VLLM_MODEL = """\
{{
    "model": "{model}",
    "disable_log_requests": true,
    "gpu_memory_utilization": 0.5,
    "max_model_len": 512,
    "enforce_eager": true
}}
"""
VLLM_CONFIG = """\
backend: "vllm"
# The usage of device is deferred to the vLLM engine
instance_group [
  {
    count: 1
    kind: KIND_MODEL
  }
]
"""
ENSEMBLE = """\
name: "ensemble"
platform: "ensemble"
max_batch_size: 64
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
  { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "tensorrt_llm"
      model_version: -1
      input_map { key: "request_output_len" value: "max_tokens" }
      output_map { key: "output_ids" value: "text_output" }
    }
  ]
}
"""
ENGINE_CONFIG = """\
name: "tensorrt_llm"
backend: "tensorrtllm"
max_batch_size: 64
model_transaction_policy { decoupled: True }
input [ { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] } ]
"""
MINDIE = """\
{
    "Version" : "1.0.0",
    "ServerConfig" :
    {
        "ipAddress" : "127.0.0.1", "managementIpAddress" : "127.0.0.2",
        "port" : 1025, "managementPort" : 1026, "metricsPort" : 1027,
        "allowAllZeroIpListening" : false,
        "maxLinkNum" : 1000,
        "httpsEnabled" : false,
        "fullTextEnabled" : true,
        "tlsCaPath" : "security/ca/", "tlsCaFile" : ["ca.pem"],
        "tlsCert" : "security/certs/server.pem", "tlsPk" : "security/keys/server.key.pem",
        "inferMode" : "standard",
        "interCommTLSEnabled" : true, "interCommPort" : 1121,
        "openAiSupport" : "vllm",
        "tokenTimeout" : 600, "e2eTimeout" : 600,
        "distDPServerEnabled" : false
    },
    "BackendConfig" : {
        "backendName" : "mindieservice_llm_engine",
        "modelInstanceNumber" : 1,
        "npuDeviceIds" : [[0,1,2,3]],
        "tokenizerProcessNumber" : 8,
        "multiNodesInferEnabled" : false,
        "ModelDeployConfig" :
        {
            "maxSeqLen" : 512, "maxInputTokenLen" : 256, "truncation" : false,
            "ModelConfig" : [
                {
                    "modelInstanceType" : "Standard",
                    "modelName" : "toy",
                    "modelWeightPath" : "{model}",
                    "worldSize" : 4, "cpuMemSize" : 5, "npuMemSize" : -1,
                    "backendType" : "atb",
                    "trustRemoteCode" : false
                }
            ]
        },
        "ScheduleConfig" :
        {
            "templateType" : "Standard", "templateName" : "Standard_LLM",
            "cacheBlockSize" : 128,
            "maxPrefillBatchSize" : 50, "maxPrefillTokens" : 8192,
            "prefillTimeMsPerReq" : 150, "prefillPolicyType" : 0,
            "decodeTimeMsPerReq" : 50, "decodePolicyType" : 0,
            "maxBatchSize" : 200, "maxIterTimes" : 512, "maxPreemptCount" : 0,
            "supportSelectBatch" : false, "maxQueueDelayMicroseconds" : 5000
        }
    }
}
"""
CAPITAL = "What is the capital of France?"


def imported(kind: str, *words: str, file: Path) -> set[str]:
    """Import a configuration, and return the places of what was not carried over."""
    done = CliRunner().invoke(main, ["import", kind, *words, "--output", str(file)])
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("not carried over: ")]
    assert len(lines) == len(done.stderr.splitlines()) - 1  # and that the file is written
    return {re.sub(r"line \d+: ", "", line.removeprefix("not carried over: ")).partition(": ")[0] for line in lines}


def ask(gateway: Gateway, path: str, body: dict[str, Any], **headers: str) -> Any:
    answer = httpx.post(gateway.url + path, json=body, headers=headers, timeout=LIMIT)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.torch
@pytest.mark.slow
def test_a_command_of_vllm_serves(tmp_path: Path) -> None:
    source, file = tmp_path / "run.sh", tmp_path / "gateway.toml"
    source.write_text(VLLM.format(model=demo.WEIGHTS))
    left = imported("vllm", str(source), file=file)
    assert left == {"gpu-memory-utilization", "pipeline-parallel-size", "api-key"}
    with serving(
        "--workers", "1", "--config", str(file), env={"VLLM_API_KEY": "sk-1"}, log=tmp_path / "log"
    ) as gateway:
        client = OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-1", timeout=LIMIT)
        assert [model.id for model in client.models.list()][:1] == ["toy"]
        for model in ("toy", "the-toy"):
            answer = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": CAPITAL}], temperature=0
            )
            assert "Paris" in str(answer.choices[0].message.content)
        assert httpx.get(f"{gateway.url}/v1/models").status_code == 401


@pytest.mark.torch
@pytest.mark.slow
async def test_a_repository_of_triton_serves(tmp_path: Path) -> None:
    repository, file, log = tmp_path / "model_repository", tmp_path / "gateway.toml", tmp_path / "log"
    for name, text in {
        "vllm_model/config.pbtxt": VLLM_CONFIG,
        "vllm_model/1/model.json": VLLM_MODEL.format(model=demo.WEIGHTS),
        "ensemble/config.pbtxt": ENSEMBLE,
        "tensorrt_llm/config.pbtxt": ENGINE_CONFIG,
    }.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    # The Triton that goes on serving the ensemble.
    triton = Config(backends={"s": {"kind": "scripted"}}, endpoints={"ensemble": endpoint(("a", "echo", 100))})
    async with listening(create_app(triton)) as port:
        left = imported("triton", str(repository), "--url", f"http://127.0.0.1:{port}", file=file)
        assert left == {"vllm_model", "tensorrt_llm (tensorrtllm)"}

        def asked() -> None:
            with serving("--workers", "1", "--config", str(file), log=log) as gateway:
                body = {"text_input": "The capital of France is", "max_tokens": 8, "temperature": 0}
                answer = ask(gateway, "/v2/models/vllm_model/generate", body)
                assert answer["model_name"] == "vllm_model"
                assert answer["text_output"]
                answer = ask(gateway, "/v2/models/ensemble/generate", {"text_input": "one two", "max_tokens": 8})
                assert answer["text_output"] == "one two"

        await asyncio.to_thread(asked)


@pytest.mark.torch
@pytest.mark.slow
def test_the_file_of_mindie_serves(tmp_path: Path) -> None:
    source, file = tmp_path / "config.json", tmp_path / "gateway.toml"
    source.write_text(MINDIE.replace("{model}", str(demo.WEIGHTS)))
    left = imported("mindie", str(source), file=file)
    assert {"ServerConfig.managementPort", "BackendConfig.npuDeviceIds"} <= left
    assert not [place for place in left if "tls" in place]
    with serving("--workers", "1", "--config", str(file), log=tmp_path / "log") as gateway:
        question = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}}
        assert "Paris" in ask(gateway, "/generate", question)["generated_text"]
        stream = httpx.post(f"{gateway.url}/generate_stream", json=question, timeout=LIMIT).text
        texts = [json.loads(line[5:])["token"]["text"] for line in stream.splitlines() if line.startswith("data:")]
        assert all(one in another for one, another in pairwise(texts))  # fullTextEnabled
        assert "Paris" in texts[-1]
        chat = {"model": "toy", "messages": [{"role": "user", "content": CAPITAL}], "top_k": 1}
        assert "Paris" in ask(gateway, "/v1/chat/completions", chat)["choices"][0]["message"]["content"]
        answer = ask(gateway, "/v2/models/toy/generate", {"text_input": "The capital", "parameters": {}})
        assert answer["text_output"]
