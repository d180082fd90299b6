"""vLLM's commands, Triton's repositories and MindIE's files become configurations."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.check import read_file
from gateway.importers.draft import Draft
from gateway.importers.fields import UnreadableError
from gateway.importers.mindie import read_mindie
from gateway.importers.pbtxt import read_pbtxt
from gateway.importers.triton import read_triton
from gateway.importers.vllm import read_vllm
from gateway.importers.vllm_flags import FLAGS, answer

LINE = """\
#!/bin/bash
export CUDA_VISIBLE_DEVICES=0
nohup vllm serve meta-llama/Llama-3.1-8B-Instruct \\
  --served-model-name llama the-llama 'the llama' --max-model-len 32k -pp 2 \\
  --lora-modules sql=./sql '{"name": "law", "path": "/l"}' --api-key $KEY --enable-auto-tool-choice \\
  --tool-call-parser llama3_json --gpu-memory-utilization=0.9 --port 9000 --host 0.0.0.0 --unheard 3
echo --max-num-seqs 3
"""
YAML = """\
model: Qwen/Qwen2.5-7B
port: 6379
uvicorn-log-level: info
max-model-len: 8192
trust-remote-code: false
dtype: half
max_num_seqs: 32
"""
DOCKER = """\
# after the examples of vLLM
docker run -d --runtime nvidia --gpus '"device=0"' --ipc=host \\
    -v ~/.cache/huggingface:/root/.cache/huggingface -v $(pwd)/models:/workspace \\
    -e NCCL_P2P_DISABLE=1 --publish=127.0.0.1:9898:8000 \\
    vllm/vllm-openai:v0.7.2 \\
    --model /workspace/qwen --max_model_len 2048 --tool-call-parser hermes
echo --max-num-seqs 3
"""
COMPOSE = """\
services:
  other: {image: redis}
  llm:
    image: vllm/vllm-openai:latest
    ports: ["8080:8000"]
    volumes:
      - hub:/root/.cache/huggingface
      - {type: bind, source: /data/models, target: /models}
    command: COMMAND
  more:
    image: vllm/vllm-openai:latest
    command: ["--model", "x/y"]
"""


def checked(draft: Draft, tmp_path: Path) -> dict[str, Any]:
    """The file, which passes `gateway check --offline`."""
    file = tmp_path / "gateway.toml"
    file.write_text(draft.toml())
    read_file(file, offline=True, insecure=True)
    return tomllib.loads(draft.toml())


def test_a_command_of_vllm(tmp_path: Path) -> None:
    draft = read_vllm(LINE)
    config = checked(draft, tmp_path)
    assert config["server"] == {"keys_env": "VLLM_API_KEY", "host": "0.0.0.0", "port": 9000}
    assert config["backends"]["llama"] == {
        "kind": "native",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "context_length": 32000,
        "lora_adapters": {"sql": "./sql", "law": "/l"},
        "tool_format": "llama3_json",
    }
    assert config["endpoints"]["llama"]["aliases"] == ["the-llama"]
    assert {left.place: left.line for left in draft.left} == dict.fromkeys(
        ("pipeline-parallel-size", "served-model-name", "api-key", "gpu-memory-utilization", "unheard"), 3
    )


def test_the_yaml_of_vllm(tmp_path: Path) -> None:
    draft = read_vllm(YAML)
    config = checked(draft, tmp_path)
    assert config["backends"]["Qwen2.5-7B"] == {
        "kind": "native",
        "model": "Qwen/Qwen2.5-7B",
        "context_length": 8192,
        "dtype": "float16",
        "max_sequences": 32,
    }
    assert [str(left) for left in draft.left] == ["line 3: uvicorn-log-level: pass --log-level"]


def test_a_container_of_vllm(tmp_path: Path) -> None:
    draft = read_vllm(DOCKER)
    config = checked(draft, tmp_path)
    assert config["server"] == {"port": 9898}
    assert config["backends"]["qwen"] == {
        "kind": "native",
        "model": "models/qwen",
        "context_length": 2048,
        "tool_format": "hermes",
    }
    assert draft.left == []
    elsewhere = read_vllm(DOCKER.replace("-v $(pwd)/models:/workspace", "-v models:/workspace"))
    assert [str(left) for left in elsewhere.left] == [
        "line 2: model: '/workspace/qwen' is a folder of the container: name this machine's"
    ]


@pytest.mark.parametrize(
    "command",
    [
        ">\n      --model /models/qwen\n      --served-model-name qwen\n      --max-model-len 2048",
        ">\n      vllm serve /models/qwen\n      --max-model-len 2048",
        '["--model", "/models/qwen", "--max-model-len=2048"]',
        "[python3, -m, vllm.entrypoints.openai.api_server, --model, /models/qwen, --max-model-len, 2048]",
    ],
)
def test_a_compose_file_with_vllm(command: str, tmp_path: Path) -> None:
    draft = read_vllm(COMPOSE.replace("COMMAND", command))
    config = checked(draft, tmp_path)
    assert config["server"] == {"port": 8080}
    assert config["backends"]["qwen"] == {"kind": "native", "model": "/data/models/qwen", "context_length": 2048}
    assert [str(left) for left in draft.left] == [
        "services.more: one server is imported at a time: give its command by itself"
    ]


@pytest.mark.parametrize("text", ["", "vllm serve", "vllm serve 'x", "serve x", "max-model-len: 3\n", "[1]"])
def test_what_is_no_command_of_vllm_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        read_vllm(text)


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_of_vllm_has_an_effect_or_an_answer(name: str) -> None:
    flag = FLAGS[name]
    value: Any = {"nothing": True, "values": ["a=b"], "value": "7"}[flag.takes]
    found = answer(name, value)
    # Nothing at all is said of what is the case anyway.
    silent = {"enable-lora", "enable-auto-tool-choice", "enable-reasoning", "enforce-eager", "enable-chunked-prefill"}
    silent |= {
        "ssl-keyfile",
        "ssl-certfile",
        "ssl-ca-certs",
        "disable-log-stats",
        "max-log-len",
        "served-model-name",
        "host",
        "port",
    }
    assert bool(found.options or found.note) is (name not in silent)
    assert not (found.refused and not found.note)


def repository(folder: Path) -> Path:
    """A repository with a model of each sort."""
    files = {
        "opt/config.pbtxt": 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n',
        "opt/1/model.json": '{"model": "facebook/opt-125m", "max_model_len": 2048, "enforce_eager": true}',
        "opt/2/model.json": '{"model": "facebook/opt-350m", "gpu_memory_utilization": 0.5,\n "max_num_seqs": 8}',
        "opt/2/multi_lora.json": '{"sql": "/adapters/sql"}',
        "ensemble/config.pbtxt": """
            name: "ensemble" platform: "ensemble" max_batch_size: 8
            input [ { name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }, { name: "max_tokens" } ]
            output: { name: "text_" "output"  # one text
                      dims: [ -1 ] }
            ensemble_scheduling < step [ { model_name: "pre" input_map { key: "Q" value: "text_input" } } ] >
            version_policy: { all { }}
        """,
        "trt/config.pbtxt": 'backend: "tensorrtllm" input { name: "input_ids" } output { name: "output_ids" }',
        "broken/config.pbtxt": 'name: "x',
        "only_a_file.txt": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_repository_of_triton(tmp_path: Path) -> None:
    draft = read_triton(repository(tmp_path / "models"), "http://10.0.0.5:8000")
    config = checked(draft, tmp_path)
    assert config["backends"] == {
        "triton-server": {"kind": "triton", "url": "http://10.0.0.5:8000"},
        "opt": {
            "kind": "native",
            "model": "facebook/opt-350m",
            "max_sequences": 8,
            "lora_adapters": {"sql": "/adapters/sql"},
        },
    }
    assert set(config["endpoints"]) == {"ensemble", "opt"}
    left = sorted((each.line, each.place) for each in draft.left)
    assert left == [
        (0, "broken"),
        (0, "trt (tensorrtllm)"),
        (1, "opt: model.json: gpu_memory_utilization"),
        (7, "ensemble/config.pbtxt: version_policy"),
    ]


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        read_triton(tmp_path)


@pytest.mark.parametrize("text", ["a", "a {", "a: }", "a: [1", "{}", 'a: "b', "a: 1 }", "a" + "{a" * 200, "a: @ ~"])
def test_what_is_no_text_format_is_refused(text: str) -> None:
    try:
        read_pbtxt(text)
    except UnreadableError:
        return
    assert text == "a: @ ~"  # words as such are names of enumerations, unless they stand where a name should


MINDIE = {
    "Version": "1.0.0",
    "ServerConfig": {
        "ipAddress": "127.0.0.1",
        "port": 1025,
        "managementPort": 1026,
        "fullTextEnabled": True,
        "httpsEnabled": True,
        "tlsCaPath": "security/ca/",
        "tlsCert": "security/certs/server.pem",
        "tlsPk": "security/keys/server.key.pem",
        "maxLinkNum": 500,
        "allowAllZeroIpListening": False,
    },
    "BackendConfig": {
        "backendName": "mindieservice_llm_engine",
        "npuDeviceIds": [[0, 1]],
        "ModelDeployConfig": {
            "maxSeqLen": 2560,
            "ModelConfig": [
                {"modelName": "llama", "modelWeightPath": "/data/llama", "worldSize": 2, "trustRemoteCode": False},
                {"modelName": "nameless"},
            ],
            "LoraModules": [{"name": "sql", "path": "/data/sql", "baseModelName": "llama"}],
        },
        "ScheduleConfig": {"maxBatchSize": 200, "maxPrefillTokens": 8192, "cacheBlockSize": 128},
    },
    "LogConfig": {"logLevel": "Info"},
}


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_the_file_of_mindie(indent: int | str | None, tmp_path: Path) -> None:
    draft = read_mindie(json.dumps(MINDIE, indent=indent))
    config = checked(draft, tmp_path)
    assert config["server"] == {
        "host": "127.0.0.1",
        "port": 1025,
        "dialects": {"openai": "mindie-openai", "tgi": "mindie", "triton": "mindie-triton"},
        "dialect_options": {"mindie": {"full_text": True}},
        "ssl_certfile": "security/certs/server.pem",
        "ssl_keyfile": "security/keys/server.key.pem",
        "limits": {"max_concurrent_requests": 500},
    }
    assert config["backends"]["llama"] == {
        "kind": "native",
        "model": "/data/llama",
        "context_length": 2560,
        "max_sequences": 200,
        "step_tokens": 8192,
        "block_size": 128,
        "lora_adapters": {"sql": "/data/sql"},
    }
    lines = {left.place: left.line for left in draft.left}
    assert set(lines) == {
        "ServerConfig.managementPort",
        "ServerConfig.tlsCaPath",
        "BackendConfig.backendName",
        "BackendConfig.npuDeviceIds",
        "BackendConfig.ModelDeployConfig.ModelConfig[0].worldSize",
        "BackendConfig.ModelDeployConfig.ModelConfig[1].modelName",
        "LogConfig",
    }
    assert lines["ServerConfig.managementPort"] == (1 if indent is None else 6)


@pytest.mark.parametrize("text", ["", "{}", '{"ServerConfig": {}}', "[]", "{"])
def test_what_is_no_file_of_mindie_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        read_mindie(text)
