"""The flags of `vllm serve` as a table: what each of them is here, for `gateway serve` and for the importers.

Source: docs.vllm.ai/en/stable/cli/serve.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from backends.native.protocol.engine_options import MTP


class Answer(NamedTuple):
    """What a flag with its value comes to.

    Attributes:
        options: of the native backend.
        note: what to know or to do; "" if it has the effect that it has in vLLM.
        refused: whether it asks for what would not be done.
    """

    options: Mapping[str, Any] = {}
    note: str = ""
    refused: bool = False


class Flag(NamedTuple):
    """A flag of `vllm serve`.

    Attributes:
        answer: for its value: a text, `True` for a switch, a list of texts for several values.
        takes: a value, nothing, or several values.
        short: its one-letter form.
        help: of `gateway serve`; "" hides it there.
        own: whether `gateway serve` has an option of this name anyway; what concerns its `server` is called the same.
    """

    answer: Callable[[Any], Answer]
    takes: Literal["value", "nothing", "values"] = "value"
    short: str = ""
    help: str = ""
    own: bool = False


def _sets(option: str, read: Callable[[Any], Any] = str) -> Callable[[Any], Answer]:
    return lambda value: Answer({option: read(value)})


def _notes(text: str) -> Callable[[Any], Answer]:
    return lambda _: Answer(note=text)


def _refuses(text: str) -> Callable[[Any], Answer]:
    return lambda _: Answer(note=text, refused=True)


def _only(values: tuple[str, ...], text: str) -> Callable[[Any], Answer]:
    """These values are what happens anyway; others are refused."""
    return lambda value: Answer() if str(value).lower() in values else Answer(note=text, refused=True)


def _number(value: Any) -> int:
    """A number of tokens as vLLM reads it: 32768, 32k (thousands) or 32K (of 1024); "auto" and -1 are 0.

    Raises:
        ValueError: it is none.
    """
    if str(value) in ("auto", "-1"):
        return 0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", str(value))
    if found is None:
        raise ValueError(f"'{value}' is no number; write 32768, 32k or 32K")
    return int(float(found[1]) * {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}[found[2]])


_DTYPES = {"half": "float16", "float": "float32"}
_PARSERS = {
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "qwen3_xml": "qwen3_coder",
}
_PARSERS |= {"granite-20b-fc": "granite_20b_fc", "phi4_mini_json": "phi4_mini", "internlm": "internlm2"}
_PARSERS |= {"deepseek_v31": "deepseek_v3_1", "glm45": "glm4", "minimax": "minimax_m1"}


def _parser(option: str) -> Callable[[Any], Answer]:
    """A parser of vLLM's by the name of a family here; of others, the chat template tells the form."""

    def answer(value: Any) -> Answer:
        # Imported where a parser is named: it takes 0.04 s, which `gateway serve` would wait for at each start.
        from backends.native.tools.families.table import BY_NAME

        name = _PARSERS.get(value, value)
        known = BY_NAME.get(name)
        if known is not None and (option == "tool_format" or known.reasoning is not None):
            return Answer({option: name})
        return Answer(note="the model's chat template tells how it writes them")

    return answer


def _lora_modules(values: Any) -> Answer:
    """`name=path`, or `{"name": ..., "path": ...}`.

    Raises:
        ValueError: one is neither.
    """
    adapters = {}
    for value in [values] if isinstance(values, str | dict) else values:
        try:
            if isinstance(value, str) and not value.startswith("{"):
                name, path = value.split("=", 1)
            else:
                module = json.loads(value) if isinstance(value, str) else value
                name, path = module["name"], module["path"]
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"'{value}' is no LoRA adapter; write name=folder") from None
        adapters[name] = path
    return Answer({"lora_adapters": adapters})


def _speculative(value: Any) -> Answer:
    """`{"model": ..., "method": ..., "num_speculative_tokens": ...}`; how many drafts pay is measured here."""
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        given = None
    if not isinstance(given, dict):
        return Answer(note=f"'{value}' is no JSON object", refused=True)
    model = str(given.get("model") or "")
    method = given.get("method") or ("ngram" if model in ("", "ngram", "[ngram]") else "draft_model")
    if method == "draft_model" and model:
        return Answer({"draft_model": model})
    if method == "ngram":
        return Answer({"speculation": True})
    if method == "mtp" or str(method).endswith("_mtp"):  # once named after model types: deepseek_mtp
        return Answer({"draft_model": MTP})
    return Answer(
        note="drafts come from a smaller model, the model's MTP layer, or the text itself: pass --speculation"
    )


def _overrides(value: Any) -> Answer:
    """`{"is_original_qwen3_reranker": true, ...}` is a model known here; config.json is not changed otherwise."""
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        given = None
    if isinstance(given, dict) and given.get("is_original_qwen3_reranker"):
        return Answer({"reranker": "qwen3"})
    if isinstance(given, dict) and "classifier_from_token" in given:
        return Answer(note="set the backend's `reranker` in a configuration", refused=True)
    return Answer(note=_FOLDER, refused=True)


_PIPELINE = _only(
    ("1",),
    "layers of a native model are not spread over devices: --tensor-parallel-size splits each layer instead; or let "
    "vLLM run it, and serve that with `gateway serve --backend URL`",
)
_NOTHING: Callable[[Any], Answer] = lambda _: Answer()  # noqa: E731 - a row of the table
_FOLDER = "what the model's folder says counts: config.json, the tokenizer, chat_template.jinja"
_MEMORY = "the KV cache is as large as --max-num-seqs and memory allow; `kv_tokens` of a backend sets it"
_FIXED = "the engine decides it by itself"

FLAGS: Mapping[str, Flag] = {
    "model": Flag(_sets("model"), own=True),
    "served-model-name": Flag(_NOTHING, "values", own=True),
    "host": Flag(_NOTHING, own=True),
    "port": Flag(_NOTHING, own=True),
    "max-model-len": Flag(
        _sets("context_length", _number), help="Shorten the model's context to this many tokens (32768, 32k)."
    ),
    "max-num-seqs": Flag(
        _sets("max_sequences", int), help="Sequences in one batch.  [default: 64, 256 on an accelerator]"
    ),
    "max-num-batched-tokens": Flag(
        _sets("step_tokens", _number), help="Tokens of one step at most.  [default: 512, 2048 on an accelerator]"
    ),
    "dtype": Flag(
        _sets("dtype", lambda value: _DTYPES.get(value, value)),
        help="auto, float32, bfloat16 or float16; int8 or int4 on CPUs.",
    ),
    "device": Flag(_sets("device"), help="auto, cpu, cuda or cuda:N."),
    "block-size": Flag(_sets("block_size", int)),
    "enable-lora": Flag(_NOTHING, "nothing"),
    "lora-modules": Flag(_lora_modules, "values", help="A LoRA adapter, NAME=FOLDER; several may follow."),
    "max-lora-rank": Flag(_notes("adapters of any rank are loaded")),
    "max-loras": Flag(_notes("all adapters are loaded")),
    "max-cpu-loras": Flag(_notes("all adapters are loaded")),
    "enable-auto-tool-choice": Flag(_NOTHING, "nothing"),
    "tool-call-parser": Flag(
        _parser("tool_format"), help="How the model writes tool calls; its template tells it, too."
    ),
    "reasoning-parser": Flag(_parser("reasoning_format"), help="How it writes reasoning; its template tells it, too."),
    "enable-reasoning": Flag(_NOTHING, "nothing"),
    "enable-prefix-caching": Flag(_sets("prefix_caching", bool), "nothing"),
    "no-enable-prefix-caching": Flag(lambda _: Answer({"prefix_caching": False}), "nothing"),
    "speculative-config": Flag(_speculative, help='Drafts, as JSON: {"model": NAME} or {"method": "ngram"}.'),
    "tensor-parallel-size": Flag(
        _sets("tensor_parallel", int), short="-tp", help="Devices that share the model.  [default: 1]"
    ),
    "pipeline-parallel-size": Flag(_PIPELINE, short="-pp"),
    "data-parallel-size": Flag(
        _sets("replicas", int), short="-dp", help="Engines of the model, each with a device of its own.  [default: 1]"
    ),
    "gpu-memory-utilization": Flag(_notes(_MEMORY)),
    "num-gpu-blocks-override": Flag(_notes(_MEMORY)),
    "swap-space": Flag(
        _sets("swap_space", float), help="GiB of the host's memory for preempted sequences.  [default: 4]"
    ),
    "cpu-offload-gb": Flag(_refuses("a model has to fit into the memory of its device: try --dtype int8")),
    "kv-cache-dtype": Flag(_only(("auto",), 'the KV cache has the model\'s dtype, or `kv_cache_dtype = "int8"`')),
    "quantization": Flag(_notes("the model's folder says how it is quantized; `--dtype int8` quantizes"), short="-q"),
    "load-format": Flag(_only(("auto", "safetensors", "gguf"), "models are safetensors or GGUF")),
    "trust-remote-code": Flag(_refuses("code that comes with a model is never run: leave it out"), "nothing"),
    "api-key": Flag(
        _refuses("a key in a command shows in the list of processes: export it as KEY and pass --keys-env KEY"),
        "values",
    ),
    "hf-token": Flag(_refuses("a token in a command shows in the list of processes: export HF_TOKEN")),
    "revision": Flag(
        _sets("revision"), help="Branch, tag or commit of a model of the hub; MODEL@REVISION is the same."
    ),
    "tokenizer": Flag(_refuses(_FOLDER)),
    "tokenizer-mode": Flag(_only(("auto",), _FOLDER)),
    "chat-template": Flag(_refuses(_FOLDER)),
    "chat-template-content-format": Flag(_notes("the chat template is asked for it")),
    "hf-overrides": Flag(_overrides),
    "download-dir": Flag(_refuses("export HF_HUB_CACHE: models of the hub are kept there")),
    "ssl-keyfile": Flag(_NOTHING, own=True),
    "ssl-certfile": Flag(_NOTHING, own=True),
    "ssl-ca-certs": Flag(_NOTHING, own=True),
    "ssl-cert-reqs": Flag(_notes("--ssl-ca-certs alone has clients show certificates")),
    "root-path": Flag(_refuses("`[[server.mounts]]` of a configuration serves every route below a prefix")),
    "allowed-origins": Flag(_refuses("set `server.cors_origins` in a configuration")),
    "middleware": Flag(_refuses("foreign code is not run in the gateway")),
    "limit-mm-per-prompt": Flag(_refuses("set the backend's `images` in a configuration")),
    "seed": Flag(_notes("each request has a seed of its own, or none")),
    "task": Flag(_notes("the model's folder says what it is for")),
    "runner": Flag(_notes("the model's folder says what it is for")),
    "enforce-eager": Flag(_NOTHING, "nothing"),
    "enable-chunked-prefill": Flag(_NOTHING, "nothing"),
    "no-enable-chunked-prefill": Flag(_notes("prompts are always read in parts"), "nothing"),
    "disable-log-requests": Flag(_notes("logs never hold a prompt"), "nothing"),
    "disable-log-stats": Flag(_NOTHING, "nothing"),
    "uvicorn-log-level": Flag(_notes("pass --log-level")),
    "max-log-len": Flag(_NOTHING),
    "guided-decoding-backend": Flag(_notes(_FIXED)),
    "compilation-config": Flag(_notes(_FIXED), short="-O"),
    "attention-backend": Flag(_notes(_FIXED)),
    "distributed-executor-backend": Flag(_notes(_FIXED)),
}
"""By their long names, without the dashes."""

SHORT = {flag.short: name for name, flag in FLAGS.items() if flag.short}
_REFUSED_ALONE = "vLLM's flag has no counterpart"


def answer(name: str, value: Any) -> Answer:
    """What a flag comes to; a flag that the table does not have is noted.

    Raises:
        ValueError: its value is wrong.
    """
    if value is False or value is None:
        # `--no-...` of a switch, or a line of a configuration that is switched off.
        return Answer()
    flag = FLAGS.get(name)
    return flag.answer(value) if flag is not None else Answer(note=_REFUSED_ALONE)
