"""MindIE: the `config.json` of its server.

Source: Ascend/MindIE-LLM, docs/zh/user_guide/user_manual/service_parameter_configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from adapters import openai, tgi, triton
from adapters.tgi.dialects import MINDIE
from gateway.importers.draft import Draft, slug
from gateway.importers.fields import Fields, UnreadableError, read_yaml

_DIALECTS = {
    adapter.name: dialect
    for adapter in (openai.ADAPTER, tgi.ADAPTER, triton.ADAPTER)
    for dialect in adapter.dialects
    if dialect.startswith(MINDIE.name)
}
_TLS = "set the keys `ssl_...` of [server] by hand"
_ASCEND = "it is of Ascend's devices"
_REASONS = {
    "managementPort": "one port serves requests, health and metrics",
    "managementIpAddress": "one address serves requests, health and metrics",
    "metricsPort": "one port serves requests, health and metrics: /metrics is there",
    "allowAllZeroIpListening": "a public address needs keys_env or keys_file, or --insecure",
    "interCommTLSEnabled": "one machine serves a model",
    "interCommPort": "one machine serves a model",
    "multiNodesInferEnabled": "one machine serves a model",
    "worldSize": "set `tensor_parallel` of its backend to the devices of this machine that share the model",
    "npuDeviceIds": _ASCEND,
    "npuMemSize": _ASCEND,
    "cpuMemSize": "the KV cache is on the model's device",
    "backendType": _ASCEND,
    "backendName": _ASCEND,
    "maxInputTokenLen": "prompt and answer share the context (maxSeqLen)",
    "maxIterTimes": "requests say how long their answers may be",
    "truncation": "a prompt that is too long is refused, unless the request has it truncated",
    "trustRemoteCode": "code that comes with a model is never run",
    "maxPrefillBatchSize": "a step is bounded by its tokens (`step_tokens`)",
    "tokenTimeout": "the engine is replaced once it hangs (`hung_after`)",
    "e2eTimeout": "an answer is ended by its client, or by its number of tokens",
    "plugin_params": "`speculation` and `prefix_caching` of a backend turn these on",
}


def read_mindie(text: str) -> Draft:
    """Our configuration for MindIE's.

    Raises:
        UnreadableError: it is no configuration of MindIE's, or names no model.
    """
    fields = read_yaml(text)
    if "BackendConfig" not in fields.values:
        raise UnreadableError("it has no `BackendConfig`: it is no configuration of MindIE's server")
    draft = Draft(fields.left)
    backend = fields.below("BackendConfig")
    deploy, schedule = backend.below("ModelDeployConfig"), backend.below("ScheduleConfig")
    _server(fields.below("ServerConfig"), draft)
    shared = _set(deploy, {"maxSeqLen": "context_length"})
    shared |= _set(
        schedule,
        {"maxBatchSize": "max_sequences", "maxPrefillTokens": "step_tokens", "cacheBlockSize": "block_size"},
    )
    adapters = {each.take("name", str): each.take("path", str) for each in deploy.each("LoraModules")}
    for model in deploy.each("ModelConfig"):
        name, path = model.take("modelName", str), model.take("modelWeightPath", str)
        if not name or not path:
            model.leave("modelName", "it names no `modelName` or no `modelWeightPath`")
            continue
        options = {"kind": "native", "model": path, **shared} | ({"lora_adapters": adapters} if adapters else {})
        draft.endpoints[name] = {"served_entities": [{"name": slug(name), "backend": draft.backend(name, options)}]}
        model.drop("modelInstanceType")
        _leave_rest(model)
    for rest in (deploy, schedule, backend):
        rest.drop("templateType", "templateName", "tokenizerProcessNumber", "modelInstanceNumber", "engineName")
        _leave_rest(rest)
    fields.drop("Version", "OtherParam")
    fields.leave("LogConfig", "logs go to standard error; pass --log-level")
    _leave_rest(fields)
    return draft


def _server(fields: Fields, draft: Draft) -> None:
    server = draft.server
    if (host := fields.take("ipAddress", str)) is not None:
        server["host"] = host
    server["port"] = fields.take("port", int, 1025)
    server["dialects"] = _DIALECTS
    if fields.take("fullTextEnabled", bool):
        server["dialect_options"] = {MINDIE.name: {"full_text": True}}
    if (most := fields.take("maxLinkNum", int)) is not None:
        server["limits"] = {"max_concurrent_requests": most}
    tls = [name for name in fields.values if name.lower().startswith(("tls", "managementtls", "kms"))]
    if fields.take("httpsEnabled", bool):
        for theirs, ours in (("tlsCert", "ssl_certfile"), ("tlsPk", "ssl_keyfile")):
            if path := fields.take(theirs, str):
                server[ours] = path
    else:
        fields.drop(*tls)  # certificates without TLS say nothing
    _leave_rest(fields, _REASONS | dict.fromkeys(tls, _TLS))


def _leave_rest(fields: Fields, reasons: Mapping[str, str] = _REASONS) -> None:
    """Report what was not taken, except for what is switched off: the file lists every setting there is."""
    fields.drop(*(name for name, value in fields.values.items() if value is False))
    fields.leave_rest(reasons)


def _set(fields: Fields, names: dict[str, str]) -> dict[str, int]:
    values = {ours: fields.take(theirs, int) for theirs, ours in names.items()}
    return {ours: value for ours, value in values.items() if value is not None and value > 0}
