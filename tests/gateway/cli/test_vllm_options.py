"""The flags of `vllm serve` at `gateway serve`: each has its effect, or an answer with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from gateway.cli import main, serve
from gateway.cli.vllm_options import is_vllm_option, native_options
from gateway.config import Config
from gateway.importers.vllm_flags import FLAGS

# Words after `gateway serve`: the options of the native backend, and what is said.
ACCEPTED: dict[str, tuple[dict[str, Any], str]] = {
    "--max-model-len 32k": ({"context_length": 32000}, ""),
    "--max-model-len 32K": ({"context_length": 32768}, ""),
    "--max-model-len auto": ({"context_length": 0}, ""),
    "--max_model_len=4096": ({"context_length": 4096}, ""),
    "--max-num-seqs 8": ({"max_sequences": 8}, ""),
    "--max-num-batched-tokens 1k": ({"step_tokens": 1000}, ""),
    "--dtype half": ({"dtype": "float16"}, ""),
    "--dtype bfloat16": ({"dtype": "bfloat16"}, ""),
    "--device cpu": ({"device": "cpu"}, ""),
    "--lora-modules a=/x b=/y --enable-lora": ({"lora_adapters": {"a": "/x", "b": "/y"}}, ""),
    '--lora-modules {"name":"a","path":"/x"}': ({"lora_adapters": {"a": "/x"}}, ""),
    "--enable-auto-tool-choice --tool-call-parser hermes": ({"tool_format": "hermes"}, ""),
    "--tool-call-parser unheard": ({}, "--tool-call-parser has no effect: the model's chat template tells"),
    '--speculative-config {"model":"/x","num_speculative_tokens":5}': ({"draft_model": "/x"}, ""),
    '--speculative-config {"method":"ngram"}': ({"speculation": True}, ""),
    '--speculative-config {"method":"mtp","num_speculative_tokens":1}': ({"draft_model": "mtp"}, ""),
    '--speculative-config {"method":"deepseek_mtp"}': ({"draft_model": "mtp"}, ""),
    '--speculative-config {"method":"eagle3","model":"/x"}': ({}, "--speculative-config has no effect: drafts come"),
    '--hf-overrides {"is_original_qwen3_reranker":true}': ({"reranker": "qwen3"}, ""),
    "--tensor-parallel-size 2": ({"tensor_parallel": 2}, ""),
    "--pipeline-parallel-size 1": ({}, ""),
    "--data-parallel-size 2": ({"replicas": 2}, ""),
    "-tp 1": ({"tensor_parallel": 1}, ""),
    "--gpu-memory-utilization 0.9": ({}, "--gpu-memory-utilization has no effect: the KV cache"),
    "--quantization awq": ({}, "--quantization has no effect: the model's folder says"),
    "-q awq": ({}, "--quantization has no effect"),
    "--no-enable-prefix-caching": ({"prefix_caching": False}, ""),
    "--enforce-eager --disable-log-stats --enable-chunked-prefill": ({}, ""),
    "--ssl-cert-reqs 2": ({}, "--ssl-cert-reqs has no effect: --ssl-ca-certs alone"),
    "--ssl-certfile /c.pem --ssl-keyfile /k.pem": ({}, ""),
    "--served-model-name one two --dtype auto": ({"dtype": "auto"}, ""),
}
REFUSED = {
    "--pipeline-parallel-size 2": "--tensor-parallel-size splits each layer instead; or let vLLM run it",
    "-pp 2": "layers of a native model are not spread",
    "--trust-remote-code": "never run",
    "--api-key sk-secret": "pass --keys-env KEY",
    "--hf-token hf-secret": "export HF_TOKEN",
    "--chat-template x": "chat_template.jinja",
    "--max-model-len many": "'many' is no number",
    "--lora-modules a": "write name=folder",
    "--speculative-config 5": "'5' is no JSON object",
    '--hf-overrides {"classifier_from_token":["Yes"]}': "`reranker` in a configuration",
    '--hf-overrides {"rope_theta":1}': "config.json",
    "--load-format dummy": "safetensors or GGUF",
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Config]:
    """What would be served, instead of serving it."""
    found: list[Config] = []
    monkeypatch.setattr("gateway.registry.prepare", lambda config, *_, **__: config)
    monkeypatch.setattr("gateway.check.validate", lambda *_, **__: None)
    monkeypatch.setattr("gateway.cli.serve._serve", lambda read, _: found.append(read()) or 0)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "tokenizer.json").touch()
    return found


@pytest.mark.parametrize("words", ACCEPTED)
def test_a_flag_has_its_effect(words: str, served: list[Config], tmp_path: Path) -> None:
    options, said = ACCEPTED[words]
    done = CliRunner().invoke(main, ["serve", str(tmp_path), *words.split()])
    assert done.exit_code == 0, done.output
    [config] = served
    assert config.backends["local"] == {"kind": "native", "model": str(tmp_path), **options}
    assert done.stderr.startswith(said)
    assert bool(done.stderr) is bool(said)
    if words.startswith("--ssl-certfile"):
        assert (config.server.ssl_certfile, config.server.ssl_keyfile) == ("/c.pem", "/k.pem")
    if words.startswith("--served"):
        assert [(name, endpoint.aliases) for name, endpoint in config.endpoints.items()] == [("one", ("two",))]


@pytest.mark.parametrize("words", REFUSED)
def test_a_flag_is_answered_with_what_to_do(words: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["serve", str(tmp_path), *words.split()])
    assert done.exit_code == 2
    assert REFUSED[words] in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("where", [["--config", "x"], ["--backend", "http://x"]])
def test_flags_of_a_native_model_need_one(where: list[str]) -> None:
    done = CliRunner().invoke(main, ["serve", *where, "--max-model-len", "4k"])
    assert done.exit_code == 2
    assert "`context_length`: for a native model" in done.stderr


def test_every_flag_of_the_table_is_an_option_of_serve() -> None:
    options = {name.removeprefix("--") for each in serve.serve.params for name in each.opts}
    assert set(FLAGS) <= options


def test_every_option_is_native() -> None:
    """What the flags set are keys of native backends."""
    from backends.native.options import NativeOptions

    given = {name: "1" for name, flag in FLAGS.items() if flag.takes == "value"}
    for name, value in given.items():
        if is_vllm_option(name):
            try:
                options = native_options({name: value})
            except click.UsageError:
                continue
            assert set(options) - {"revision"} <= set(NativeOptions.__struct_fields__)
            assert json.dumps(options)
