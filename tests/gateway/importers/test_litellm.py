"""LiteLLM's configurations become ours, and ours serve."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gateway.check import read_file
from gateway.importers.fields import UnreadableError
from gateway.importers.litellm import read_litellm

# After the examples in LiteLLM's documentation, in other words and with other names.
EXAMPLES = {
    "groups": """
model_list:
  - model_name: chat            # what clients name
    litellm_params:
      model: azure/chat-eu
      api_base: https://europe.openai.azure.com/
      api_key: "os.environ/AZURE_EU"
      rpm: 60
  - model_name: chat
    litellm_params:
      model: azure/chat-ca
      api_base: https://canada.openai.azure.com/
      api_key: os.environ/AZURE_CA
      api_version: "2024-02-01"
      rpm: 540
  - model_name: claude
    litellm_params:
      model: bedrock/anthropic.claude-instant-v1
      aws_region_name: us-east-1
  - model_name: local
    litellm_params:
      model: openai/facebook/opt-125m
      api_base: http://127.0.0.1:9/v1
      api_key: none
    model_info:
      version: 2
  - model_name: "*"
    litellm_params:
      model: "*"
litellm_settings:
  drop_params: True
  success_callback: ["langfuse"]
general_settings:
  master_key: sk-very-secret
  alerting: ["slack"]
""",
    "reliability": """
model_list:
  - model_name: zephyr
    litellm_params: {model: huggingface/HuggingFaceH4/zephyr-7b-beta, api_base: "http://127.0.0.1:8001", rpm: 60}
  - model_name: zephyr
    litellm_params: {model: huggingface/HuggingFaceH4/zephyr-7b-beta, api_base: "http://127.0.0.1:8002", rpm: 600}
  - model_name: zephyr
    litellm_params: {model: huggingface/HuggingFaceH4/zephyr-7b-beta, api_base: "http://127.0.0.1:8003", rpm: 60000}
  - model_name: gpt-4o
    litellm_params: {model: gpt-4o, api_key: sk-one}
  - model_name: gpt-4o
    litellm_params: {model: gpt-4o, api_key: sk-two}
  - model_name: big
    litellm_params: {model: gpt-4-turbo, api_key: sk-one}
    model_info: {id: by-its-id, mode: chat, input_cost_per_token: 0.00001, output_cost_per_token: 0.00003}
litellm_settings:
  num_retries: 3
  request_timeout: 10
  allowed_fails: 3
  cooldown_time: 30
  fallbacks: [{"zephyr": ["gpt-4o"]}, {"gpt-4o": ["by-its-id", "nowhere"]}]
  context_window_fallbacks: [{"zephyr": ["big"]}]
router_settings:
  routing_strategy: latency-based-routing
  model_group_alias: {"gpt-4": "gpt-4o", "hidden": {"model": "big", "hidden": true}, "lost": "nowhere"}
  num_retries: 2
  timeout: 30
  stream_timeout: 5
  redis_host: redis
""",
    "providers": """
model_list:
  - {model_name: a, litellm_params: {model: anthropic/claude-sonnet-4-5, api_key: os.environ/ANTHROPIC_API_KEY}}
  - {model_name: b, litellm_params: {model: groq/llama-3.3-70b-versatile}}
  - {model_name: c, litellm_params: {model: mistral/mistral-large-latest}}
  - {model_name: d, litellm_params: {model: together_ai/meta-llama/Llama-3-70b-chat-hf}}
  - {model_name: e, litellm_params: {model: deepseek/deepseek-chat}}
  - {model_name: f, litellm_params: {model: fireworks_ai/accounts/fireworks/models/llama-v3-8b-instruct}}
  - {model_name: g, litellm_params: {model: openrouter/google/palm-2-chat-bison}}
  - {model_name: h, litellm_params: {model: ollama/llama3, api_base: "http://127.0.0.1:11434"}}
  - {model_name: i, litellm_params: {model: hosted_vllm/qwen, api_base: "http://127.0.0.1:8000"}}
  - {model_name: j, litellm_params: {model: databricks/dbrx, api_base: "https://x.cloud.databricks.com/serving-endpoints"}}
  - {model_name: k, litellm_params: {model: huggingface/a/b}}
  - {model_name: l, litellm_params: {model: gemini/gemini-2.0-flash}}
  - {model_name: m, litellm_params: {model: triton/llama, api_base: "http://127.0.0.1:8000/generate"}}
  - {model_name: n, litellm_params: {model: text-embedding-3-small}, model_info: {mode: embedding}}
  - {model_name: o, litellm_params: {model: anthropic/claude, api_base: "https://proxy.example/v1/messages"}}
""",
    "credentials": """
credential_list:
  - credential_name: europe
    credential_values: {api_key: os.environ/EUROPE, api_base: "https://eu.openai.azure.com"}
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: azure/gpt-4o
      litellm_credential_name: europe
      weight: 9
      extra_headers: {x-team: blue, x-secret-key: abc, x-env: os.environ/TEAM}
      temperature: 0.2
      max_parallel_requests: 5
  - model_name: gpt-4o
    litellm_params: {model: gpt-4o, weight: 1, timeout: 7}
  - model_name: first
    litellm_params: {model: gpt-4o, order: 2}
  - model_name: first
    litellm_params: {model: azure/gpt-4o, litellm_credential_name: europe, order: 1}
router_settings: {default_fallbacks: ["gpt-4o"], routing_strategy: simple-shuffle}
""",
    "out of bounds": """
model_list:
  - model_name: a
    litellm_params: {model: gpt-4o, weight: .nan, timeout: -1, max_retries: -1, max_parallel_requests: 0, rpm: -5}
  - model_name: a
    litellm_params: {model: gpt-4, weight: 1, input_cost_per_token: .nan}
litellm_settings: {request_timeout: 0, allowed_fails: -1}
""",
}


def imported(name: str, tmp_path: Path, **environment: str) -> tuple[dict[str, Any], list[str]]:
    """The imported file, which passes `gateway check --offline`, and what was left."""
    draft = read_litellm(EXAMPLES[name], environment)
    file = tmp_path / "gateway.toml"
    file.write_text(draft.toml())
    read_file(file, offline=True)
    return tomllib.loads(draft.toml()), [str(left) for left in sorted(draft.left)]


def test_numbers_that_can_mean_nothing_here_are_left_with_their_lines(tmp_path: Path) -> None:
    config, left = imported("out of bounds", tmp_path)
    assert not {"timeouts", "retries", "limits", "failures"} & config["backends"]["openai"].keys()
    assert [arm["traffic_percentage"] for arm in config["endpoints"]["a"]["served_entities"]] == [0, 100]
    names = ("weight", "timeout", "max_retries", "max_parallel_requests", "rpm", "input_cost_per_token")
    for name in (*names, "request_timeout", "allowed_fails"):
        assert [each for each in left if f"{name}: " in each and "is not understood: Expected" in each], name


@pytest.mark.slow
def test_groups_become_endpoints_and_what_is_left_has_its_line(tmp_path: Path) -> None:
    config, left = imported("groups", tmp_path)
    assert config["server"] == {"port": 4000, "keys_env": "LITELLM_MASTER_KEY"}
    assert config["backends"]["azure"] == {
        "kind": "openai",
        "url": "https://europe.openai.azure.com/openai/v1",
        "api_key_env": "AZURE_EU",
        "key_header": "api-key",
    }
    chat = config["endpoints"]["chat"]
    assert [(arm["name"], arm["traffic_percentage"]) for arm in chat["served_entities"]] == [
        ("chat-eu", 10),
        ("chat-ca", 90),
    ]
    assert chat["limits"] == [{"requests": 600, "window": "minute"}]
    assert chat["experiment"] == {"unit": ["request"]}
    assert "api_key_env" not in config["backends"][config["endpoints"]["local"]["served_entities"][0]["backend"]]
    assert [each.partition(": ")[0] + ": " + each.partition(": ")[2].partition(":")[0] for each in left] == [
        "line 14: model_list[1].litellm_params.api_version",
        "line 18: model_list[2].litellm_params.model",
        "line 26: model_list[3].model_info.version",
        "line 27: model_list[4].model_name",
        "line 31: litellm_settings.drop_params",
        "line 32: litellm_settings.success_callback",
        "line 34: general_settings.master_key",
        "line 35: general_settings.alerting",
    ]
    assert "sk-very-secret" not in str(config) + str(left)


def test_a_limit_of_some_deployments_is_a_weight_and_reported() -> None:
    text = """
model_list:
  - {model_name: a, litellm_params: {model: gpt-4o, rpm: 30, tpm: 9000}}
  - {model_name: a, tpm: 1000, litellm_params: {model: gpt-4o-mini}}
"""
    draft = read_litellm(text, {})
    assert [arm["traffic_percentage"] for arm in draft.endpoints["a"]["served_entities"]] == [100, 0]
    assert [str(left) for left in draft.left] == [
        "line 3: model_list[0].litellm_params.rpm: other deployments of 'a' have none: it is a weight at most,"
        " and limits nothing"
    ]
    assert draft.endpoints["a"]["limits"] == [{"tokens": 10000, "window": "minute"}]


def test_fallbacks_retries_and_timeouts(tmp_path: Path) -> None:
    config, left = imported("reliability", tmp_path)
    zephyr, gpt = config["endpoints"]["zephyr"], config["endpoints"]["gpt-4o"]
    assert [arm["traffic_percentage"] for arm in zephyr["served_entities"]] == [1, 1, 98, 0, 0]
    assert [arm.get("model") for arm in zephyr["served_entities"]] == [None, None, None, "gpt-4o", "gpt-4o"]
    assert [arm["model"] for arm in gpt["served_entities"]] == ["gpt-4o", "gpt-4o", "gpt-4-turbo"]
    assert gpt["aliases"] == ["gpt-4"]
    assert config["endpoints"]["big"]["aliases"] == ["hidden"]
    assert config["endpoints"]["big"]["served_entities"][0]["price"] == {"prompt": 10.0, "completion": 30.0}
    for backend in config["backends"].values():
        assert backend["retries"] == {"attempts": 3}
        assert backend["timeouts"] == {"whole": 30.0, "first_token": 5.0}
        assert backend["failures"] == 4
    # Two keys that are written into the file are two variables.
    assert {backend.get("api_key_env") for backend in config["backends"].values()} == {
        None,
        "OPENAI_API_KEY",
        "OPENAI_API_KEY_2",
    }
    text = "\n".join(left)
    for words in ("'nowhere' is no model", "routing_strategy", "cooldown_time", "redis_host", "context_window", "lost"):
        assert words in text
    assert "sk-one" not in text


def test_every_common_provider_is_known(tmp_path: Path) -> None:
    config, left = imported("providers", tmp_path)
    assert left == []
    found = {}
    for name, endpoint in config["endpoints"].items():
        [arm] = endpoint["served_entities"]
        backend = config["backends"][arm["backend"]]
        found[name] = (backend["kind"], backend["url"], backend.get("api_key_env"), arm.get("model"))
    assert found["a"] == ("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "claude-sonnet-4-5")
    assert found["b"][:3] == ("openai", "https://api.groq.com/openai/v1", "GROQ_API_KEY")
    assert found["f"][3] == "accounts/fireworks/models/llama-v3-8b-instruct"
    assert found["h"] == ("openai", "http://127.0.0.1:11434/v1", None, "llama3")
    assert found["i"] == ("openai", "http://127.0.0.1:8000/v1", None, "qwen")
    assert found["j"][:3] == ("databricks", "https://x.cloud.databricks.com", "DATABRICKS_API_KEY")
    assert found["k"][:2] == ("openai", "https://router.huggingface.co/v1")
    assert found["m"] == ("triton", "http://127.0.0.1:8000", None, "llama")
    # The provider's own key is not sent to somebody else's server.
    assert found["o"] == ("anthropic", "https://proxy.example", None, "claude")
    assert config["endpoints"]["n"]["task"] == "embeddings"


def test_credentials_headers_weights_and_orders(tmp_path: Path) -> None:
    config, left = imported("credentials", tmp_path)
    azure = config["backends"]["azure"]
    assert azure["api_key_env"] == "EUROPE"
    assert azure["url"] == "https://eu.openai.azure.com/openai/v1"
    assert azure["limits"] == {"connections": 5}
    assert azure["headers"]["x-team"] == "blue"
    assert azure["headers"]["x-env"] == {"env": "TEAM"}
    assert set(azure["headers"]["x-secret-key"]) == {"env"}
    arms = config["endpoints"]["gpt-4o"]["served_entities"]
    assert [arm["traffic_percentage"] for arm in arms] == [90, 10]
    first = config["endpoints"]["first"]["served_entities"]
    assert [arm["traffic_percentage"] for arm in first] == [0, 100, 0, 0]
    assert any("temperature: a default of requests" in each for each in left)
    assert any("x-secret-key: secrets are not copied" in each for each in left)


def test_urls_come_from_the_environment(tmp_path: Path) -> None:
    text = "model_list: [{model_name: a, litellm_params: {model: azure/b, api_base: os.environ/BASE}}]\n"
    assert "https://x.example/openai/v1" in read_litellm(text, {"BASE": "https://x.example"}).toml()
    draft = read_litellm(text, {})
    assert draft.endpoints == {}
    assert "'os.environ/BASE' is no URL" in str(draft.left[0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: 1",
        "a: *b",
        "model_list: [",
        "{" * 700,
        "model_list: 3",
        "model_list: [1, {model_name: x}]",
        "? [a]: b",
    ],
)
def test_what_is_no_configuration_is_refused_or_reported(text: str) -> None:
    try:
        draft = read_litellm(text, {})
    except UnreadableError:
        return
    assert draft.left
    assert draft.endpoints == {}
