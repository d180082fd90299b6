"""Public providers and other people's servers by the names that other gateways call them, as data: what is needed to
reach each of them.

Sources: the providers' own pages of their base URLs, and docs.litellm.ai/docs/providers for names and variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit


class Provider(NamedTuple):
    """How a provider is reached.

    Attributes:
        kind: the kind of backend.
        url: its base URL; None: each customer has one.
        key_env: the variable that its key is usually kept in; None: it has no keys of its own.
        key_header: the header of the key, if it is not the protocol's.
        path: the path of the base URL of a server that is given by its root.
        dropped: paths that others have at the end of the base URL, and that this kind of backend adds by itself.
        one_model: whether a server has one model, which requests do not name.
    """

    kind: str
    url: str | None = None
    key_env: str | None = None
    key_header: str | None = None
    path: str = ""
    dropped: tuple[str, ...] = ()
    one_model: bool = False

    def base_url(self, given: str) -> str:
        """The URL to configure for a server that is given by its root or its base URL."""
        given = given.strip().rstrip("/")
        for ending in self.dropped:
            given = given.removesuffix(ending)
        return given + self.path if urlsplit(given).path in ("", "/") else given


_COMPLETIONS = ("/chat/completions", "/completions", "/embeddings")


def _openai(url: str | None = None, key_env: str | None = None, path: str = "/v1") -> Provider:
    return Provider("openai", url, key_env, path=path, dropped=_COMPLETIONS)


_SERVER = _openai()

PROVIDERS: Mapping[str, Provider] = {
    "openai": _openai("https://api.openai.com/v1", "OPENAI_API_KEY"),
    # Azure's v1 paths take the deployment's name as `model` and need no `api-version`.
    "azure": Provider("openai", None, "AZURE_API_KEY", "api-key", "/openai/v1"),
    "azure_ai": Provider("openai", None, "AZURE_AI_API_KEY", "api-key", "/openai/v1", _COMPLETIONS),
    "anthropic": Provider(
        "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", dropped=("/v1/messages", "/v1")
    ),
    "databricks": Provider("databricks", None, "DATABRICKS_API_KEY", dropped=("/serving-endpoints",)),
    "gemini": _openai("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "groq": _openai("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": _openai("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "codestral": _openai("https://codestral.mistral.ai/v1", "CODESTRAL_API_KEY"),
    "together_ai": _openai("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "deepseek": _openai("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks_ai": _openai("https://api.fireworks.ai/inference/v1", "FIREWORKS_AI_API_KEY"),
    "openrouter": _openai("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "perplexity": _openai("https://api.perplexity.ai", "PERPLEXITYAI_API_KEY", path=""),
    "xai": _openai("https://api.x.ai/v1", "XAI_API_KEY"),
    "cerebras": _openai("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "sambanova": _openai("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "nvidia_nim": _openai("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "deepinfra": _openai("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "cohere": _openai("https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY"),
    "cohere_chat": _openai("https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY"),
    "moonshot": _openai("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "dashscope": _openai("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    "github": _openai("https://models.github.ai/inference", "GITHUB_API_KEY"),
    "ai21": _openai("https://api.ai21.com/studio/v1", "AI21_API_KEY"),
    # A TGI takes every name of a model but its own for that of a LoRA adapter.
    "huggingface": Provider("tgi", one_model=True),
    "ollama": _openai("http://localhost:11434/v1"),
    "ollama_chat": _openai("http://localhost:11434/v1"),
    "lm_studio": _openai("http://localhost:1234/v1"),
    "llamafile": _openai("http://localhost:8080/v1"),
    "triton": Provider("triton", dropped=("/generate", "/infer")),
    **dict.fromkeys(
        (
            "hosted_vllm",
            "vllm",
            "openai_like",
            "custom_openai",
            "text-completion-openai",
            "litellm_proxy",
            "xinference",
            "infinity",
            "docker_model_runner",
        ),
        _SERVER,
    ),
}
"""By the prefix that stands in front of a model's name."""

ROUTER = _openai("https://router.huggingface.co/v1", "HUGGINGFACE_API_KEY")
"""Hugging Face's own service, for `huggingface` without a server."""

SIGNED = {
    "bedrock": "its requests are signed with AWS's keys",
    "bedrock_converse": "its requests are signed with AWS's keys",
    "sagemaker": "its requests are signed with AWS's keys",
    "sagemaker_chat": "its requests are signed with AWS's keys",
    "vertex_ai": "its tokens are made of a service account",
    "vertex_ai_beta": "its tokens are made of a service account",
    "watsonx": "its tokens are made of an IAM key",
    "github_copilot": "its tokens come from a login in a browser",
    "replicate": "its protocol is its own",
}
"""Providers that no kind of backend can call, and why."""

BY_MODEL = {
    "gpt-": "openai",
    "chatgpt-": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
    "text-embedding-": "openai",
    "claude-": "anthropic",
    "gemini-": "gemini",
    "command-": "cohere",
    "deepseek-": "deepseek",
    "mistral-": "mistral",
}
"""Providers by the beginning of a model's name, where no prefix names one."""


def split_model(model: str) -> tuple[str | None, str]:
    """A prefix that names a provider, and the model's name there; None: none is known of the name."""
    prefix, slash, name = model.partition("/")
    if slash and (prefix in PROVIDERS or prefix in SIGNED):
        return prefix, name
    return next((provider for start, provider in BY_MODEL.items() if model.startswith(start)), None), model
