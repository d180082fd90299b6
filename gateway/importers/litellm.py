"""LiteLLM's proxy: `config.yaml`.

Source: docs.litellm.ai/docs/proxy/configs, /config_settings, /reliability and /load_balancing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backends.providers import PROVIDERS, ROUTER, SIGNED, Provider, split_model
from gateway.importers.draft import Draft, is_alias, slug, unique
from gateway.importers.fields import AMOUNT, COUNT, COUNT_OR_NONE, SECONDS, Fields, UnreadableError, read_yaml

_PORT = 4000
_VARIABLE = "os.environ/"
_NO_KEYS = frozenset(("", "none", "null", "empty", "dummy", "fake", "fake-key", "anything", "not-needed", "no-key"))
"""What people write where a server needs no key, in small letters."""
_SECRET = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)
"""What names of headers that hold secrets have in them."""
_TASKS = {"chat": "chat", "completion": "completions", "embedding": "embeddings", "rerank": "rerank"}

_DEFAULTS = "a default of requests: clients send it"
_CACHE = "answers are kept for each endpoint that has [endpoints.NAME.cache]"
_CALLBACK = "there are no callbacks: requests are in the log, in /metrics and in [server.export]"
_REDIS = "not needed: the workers of one machine share limits and counters through files"
_USERS = "there are no users and teams: `gateway keys` makes keys with limits of requests, tokens and costs"
_REASONS = (
    dict.fromkeys(("temperature", "max_tokens", "seed", "top_p", "stop", "max_completion_tokens", "n"), _DEFAULTS)
    | dict.fromkeys(("cache", "cache_params", "caching_groups", "cache_responses"), _CACHE)
    | dict.fromkeys(("callbacks", "success_callback", "failure_callback", "service_callback"), _CALLBACK)
    | dict.fromkeys(("redis_host", "redis_port", "redis_password", "redis_url"), _REDIS)
    | dict.fromkeys(("database_url", "database_connection_pool_limit", "store_model_in_db", "proxy_budget"), _USERS)
    | dict.fromkeys(("max_budget", "budget_duration", "default_team_settings"), _USERS)
    | {
        "api_version": "Azure's v1 paths need none",
        "azure_ad_token": "Azure is called with a key (`api_key_env`)",
        "drop_params": "a parameter that nobody knows is named in a header; one that cannot be honored is refused",
        "context_window_fallbacks": "there is one order of failover, whatever the failure",
        "content_policy_fallbacks": "there is one order of failover, whatever the failure",
        "cooldown_time": "a server is preferred again once it answers its health check (`health_interval`)",
        "enable_pre_call_checks": "prompts are not measured before they are sent",
        "environment_variables": "set them in the environment of the gateway",
        "set_verbose": "pass --log-level debug",
        "json_logs": "logs are JSON unless they go to a terminal",
        "alerting": "alert by /metrics",
        "include": "import those files by themselves",
        "guardrails": "write them as [filters.NAME], which `filters` of an endpoint names",
        "aws_region_name": "no kind of backend signs requests with AWS's keys",
        "organization": "give it as a header of the backend: openai-organization",
    }
)


@dataclass(frozen=True, slots=True)
class _Deployment:
    """One deployment of a model group.

    `weight`, `rpm`, `tpm`, `order`: as they are written, None if they are not. `written`: the tables that have them.
    """

    id: str | None
    entity: dict[str, Any]
    weight: float | None
    rpm: int | None
    tpm: int | None
    order: int | None
    task: str | None
    written: tuple[Fields, Fields]


def read_litellm(text: str, environment: Mapping[str, str]) -> Draft:
    """Our configuration for LiteLLM's.

    Args:
        text: the file.
        environment: for what is read from variables other than secrets: URLs.

    Raises:
        UnreadableError: it is no configuration of LiteLLM's.
    """
    fields = read_yaml(text)
    if "model_list" not in fields.values:
        raise UnreadableError("it has no `model_list`: it is no configuration of LiteLLM's proxy")
    return _Importer(fields, environment).read()


class _Importer:
    def __init__(self, fields: Fields, environment: Mapping[str, str]) -> None:
        self._fields = fields
        self._environment = environment
        self._draft = Draft(fields.left)
        self._secrets: dict[str, str] = {}
        self._settings = fields.below("litellm_settings")
        self._router = fields.below("router_settings")
        self._credentials = {
            each.take("credential_name", str, "") or "": each.below("credential_values")
            for each in fields.each("credential_list")
        }

    def read(self) -> Draft:
        draft = self._draft
        draft.server["port"] = _PORT
        options = self._shared_options()
        groups: dict[str, list[_Deployment]] = {}
        for model in self._fields.each("model_list"):
            name = model.take("model_name", str)
            deployment = self._deployment(model, name, options) if name else None
            if name and deployment is not None:
                groups.setdefault(name, []).append(deployment)
        for name, deployments in groups.items():
            draft.endpoints[name] = _endpoint(deployments)
            _report_partial_limits(name, deployments)
        self._fall_back(groups)
        self._alias()
        self._general()
        strategy = self._router.take("routing_strategy", str, "simple-shuffle")
        if strategy != "simple-shuffle":
            why = "requests are shared by weights; servers of one model, as `urls` of one backend, have `routing`"
            self._router.leave("routing_strategy", why)
        for rest in (self._settings, self._router, self._fields):
            rest.leave_rest(_REASONS)
        return draft

    def _shared_options(self) -> dict[str, Any]:
        """The options of all backends: settings of the router go before those of the library."""
        options: dict[str, Any] = {}
        timeout = self._router.take("timeout", SECONDS) or self._settings.take("request_timeout", SECONDS)
        self._settings.drop("request_timeout")
        options |= _timeouts(timeout, self._router.take("stream_timeout", SECONDS))
        retries = [each.take("num_retries", COUNT_OR_NONE) for each in (self._router, self._settings)]
        options |= _retries(next((each for each in retries if each is not None), None))
        fails = [each.take("allowed_fails", COUNT_OR_NONE) for each in (self._router, self._settings)]
        # "if it fails more than so often": that many failures, and one more.
        if (allowed := next((each for each in fails if each is not None), None)) is not None:
            options["failures"] = allowed + 1
        return options

    def _deployment(self, model: Fields, group: str, shared: Mapping[str, Any]) -> _Deployment | None:
        params, info = model.below("litellm_params"), model.below("model_info")
        wanted = params.take("model", str)
        if not wanted:
            params.leave("model", "it is missing")
            return None
        prefix, name = split_model(wanted)
        prefix = params.take("custom_llm_provider", str) or prefix
        if "*" in wanted or "*" in group:
            model.leave("model_name", f"'{group}' is a pattern: name each model that it stands for")
            return None
        provider, base = self._provider(params, prefix)
        section = self._backend(params, provider, base) if provider is not None else None
        if provider is None or section is None:
            return None
        section |= dict(shared)
        section |= _timeouts(params.take("timeout", SECONDS), params.take("stream_timeout", SECONDS), shared)
        section |= _retries(params.take("max_retries", COUNT_OR_NONE) or params.take("num_retries", COUNT_OR_NONE))
        if (most := params.take("max_parallel_requests", COUNT)) is not None:
            section["limits"] = {"connections": most}
        price = _price(params, info)
        entity: dict[str, Any] = {"name": slug(name), "backend": self._draft.backend(prefix or "server", section)}
        entity |= {} if provider.one_model else {"model": name}
        entity |= {"price": price} if price else {}
        task = _TASKS.get(info.take("mode", str) or "")
        deployment = _Deployment(
            id=info.take("id", str),
            entity=entity,
            weight=params.take("weight", AMOUNT),
            rpm=params.take("rpm", COUNT_OR_NONE) or model.take("rpm", COUNT_OR_NONE),
            tpm=params.take("tpm", COUNT_OR_NONE) or model.take("tpm", COUNT_OR_NONE),
            order=params.take("order", int),
            task=None if task == "chat" else task,
            written=(params, model),
        )
        for rest in (params, info, model):
            rest.leave_rest(_REASONS)
        return deployment

    def _provider(self, params: Fields, prefix: str | None) -> tuple[Provider | None, str | None]:
        """How a deployment's server is reached, and its URL as it is written; no way, which is reported, for some."""
        credentials = self._credentials.get(params.take("litellm_credential_name", str) or "")
        bases = [self._value(each, name) for each in (params, credentials) if each for name in ("api_base", "base_url")]
        base = next((each for each in bases if each), None)
        if prefix in SIGNED:
            params.leave("model", f"{prefix}: no kind of backend calls it, because {SIGNED[prefix]}")
            return None, None
        provider = PROVIDERS.get(prefix or "", PROVIDERS["hosted_vllm"])
        return (ROUTER if base is None and provider.one_model else provider), base

    def _backend(self, params: Fields, provider: Provider, base: str | None) -> dict[str, Any] | None:
        """The section of a server; None, which is reported, if its URL is not known."""
        url = provider.base_url(base) if base else provider.url
        if url is None or "://" not in url:
            what = f"'{base}' is no URL" if base else "no URL of its server is known"
            params.leave("model", f"{what}: set `api_base`, or export the variable that it names before the import")
            return None
        section: dict[str, Any] = {"kind": provider.kind, "url": url}
        # A key for the provider's own service is not sent to another server unless it is named.
        default = provider.key_env if base is None or provider.url is None else None
        credentials = self._credentials.get(params.values.get("litellm_credential_name") or "")
        key = self._secret(credentials, "api_key", None) if credentials else None
        key = self._secret(params, "api_key", key or default)
        if key is not None:
            section["api_key_env"] = key
            section |= {"key_header": provider.key_header} if provider.key_header else {}
        return section | self._headers(params)

    def _headers(self, params: Fields) -> dict[str, Any]:
        headers: dict[str, Any] = {}
        for table in (params.below("extra_headers"), params.below("headers")):
            for name in table.values:
                variable = self._secret(table, name, None) if _SECRET.search(name) else None
                value = table.take(name, str) or ""
                variable = value.removeprefix(_VARIABLE) if value.startswith(_VARIABLE) else variable
                headers[name] = {"env": variable} if variable else value
        return {"headers": headers} if headers else {}

    def _value(self, fields: Fields, name: str) -> str | None:
        """A setting that is no secret: a variable's is read now."""
        value = fields.take(name, str)
        if value is None or not value.startswith(_VARIABLE):
            return value
        return self._environment.get(value.removeprefix(_VARIABLE), value)

    def _secret(self, fields: Fields, name: str, default: str | None) -> str | None:
        """The variable of a secret; what is written into the file is not copied."""
        value = fields.take(name, str)
        if value is None or value.startswith(_VARIABLE):
            variable = value.removeprefix(_VARIABLE) if value is not None else default
            if variable is not None:
                self._secrets.setdefault(variable, _VARIABLE)
            return variable
        if value.lower() in _NO_KEYS:
            return None
        variable = self._variable(default or f"{slug(str(fields.values.get('model', name)))}_KEY", value)
        fields.leave(name, f"secrets are not copied: export it as {variable}")
        return variable

    def _variable(self, name: str, secret: str) -> str:
        """The variable for a secret: one for each, whose name is the first free one."""
        name = re.sub(r"\W", "_", name).upper()
        while self._secrets.setdefault(name, secret) != secret:
            stem, _, number = name.rpartition("_")
            name = f"{stem}_{int(number) + 1}" if number.isdigit() else f"{name}_2"
        return name

    def _fall_back(self, groups: Mapping[str, Sequence[_Deployment]]) -> None:
        """Add what answers instead, in its order, as served entities without traffic."""
        for settings in (self._router, self._settings):
            for each in settings.each("fallbacks"):
                for name in each.values:
                    for other in each.take(name, list[Any], []) or []:
                        if not self._add_targets(name, other, groups):
                            each.leave(name, f"{other!r} is no model of the list that the gateway can serve")
            for other in settings.take("default_fallbacks", list[Any], []) or []:
                added = [self._add_targets(name, other, groups) for name in groups if name != other]
                if not all(added):
                    settings.leave("default_fallbacks", f"{other!r} is no model of the list")

    def _add_targets(self, name: str, other: Any, groups: Mapping[str, Sequence[_Deployment]]) -> bool:
        endpoint = self._draft.endpoints.get(name)
        found = groups.get(other) if isinstance(other, str) else None
        found = found or [each for group in groups.values() for each in group if other == each.id]
        if endpoint is None or not found:
            return False
        arms = endpoint["served_entities"]
        known = {(arm["backend"], arm.get("model")) for arm in arms}
        for each in found:
            if (each.entity["backend"], each.entity.get("model")) not in known:
                named = unique(each.entity["name"], (arm["name"] for arm in arms))
                arms.append(each.entity | {"name": named, "traffic_percentage": 0})
        return True

    def _alias(self) -> None:
        aliases = self._router.below("model_group_alias")
        for alias in aliases.values:
            value = aliases.values[alias]
            # The long form also says whether listings hide it.
            group = value.get("model") if isinstance(value, dict) else value
            if group not in self._draft.endpoints or alias in self._draft.endpoints or not is_alias(alias):
                aliases.leave(alias, f"{group!r} is no model of the list, or the name is taken or has spaces")
            else:
                self._draft.endpoints[group].setdefault("aliases", []).append(alias)
                aliases.drop(alias)

    def _general(self) -> None:
        general = self._fields.below("general_settings")
        key = self._secret(general, "master_key", "LITELLM_MASTER_KEY")
        if key is not None and "master_key" in general.values:
            self._draft.server["keys_env"] = key
            self._draft.comment(
                f"Clients need a key: export {key}, or make keys with limits of their own (gateway keys)."
            )
        most = general.take("max_parallel_requests", COUNT) or general.take("global_max_parallel_requests", COUNT)
        if most is not None:
            self._draft.server["limits"] = {"max_concurrent_requests": most}
        general.leave_rest(_REASONS)


def _endpoint(deployments: Sequence[_Deployment]) -> dict[str, Any]:
    """The endpoint of a group: one served entity for each of its deployments."""
    arms: list[dict[str, Any]] = []
    for each, share in zip(deployments, _shares(deployments), strict=True):
        name = unique(each.entity["name"], (arm["name"] for arm in arms))
        arm = each.entity | {"name": name}
        arms.append(arm | ({"traffic_percentage": share} if len(deployments) > 1 else {}))
    endpoint: dict[str, Any] = {"served_entities": arms}
    tasks = {each.task for each in deployments}
    if len(tasks) == 1 and None not in tasks:
        endpoint["task"] = tasks.pop()
    if sum(arm.get("traffic_percentage", 0) > 0 for arm in arms) > 1:
        # LiteLLM picks for each request anew.
        endpoint["experiment"] = {"unit": ["request"]}
    if limit := dict(_limits(deployments)):
        endpoint["limits"] = [limit | {"window": "minute"}]
    return endpoint


def _shares(deployments: Sequence[_Deployment]) -> list[int]:
    """Percentages that add up to 100: by weights, else by the limits, as LiteLLM's shuffle does; the first by order."""
    orders = [each.order for each in deployments]
    if len(deployments) > 1 and any(order is not None for order in orders):
        first = min(range(len(orders)), key=lambda place: (orders[place] is None, orders[place] or 0))
        return [100 if place == first else 0 for place in range(len(orders))]
    parts = [1.0] * len(deployments)
    for values in (
        [each.weight for each in deployments],
        [each.rpm for each in deployments],
        [each.tpm for each in deployments],
    ):
        if any(values):
            parts = [float(value or 0) for value in values]
            break
    whole = [int(100 * part / sum(parts)) for part in parts]
    # The largest remainders get what rounding left over; who has a weight at all keeps 1 %.
    order = sorted(range(len(parts)), key=lambda place: whole[place] - 100 * parts[place] / sum(parts))
    for place in order[: 100 - sum(whole)]:
        whole[place] += 1
    for place, part in enumerate(parts):
        if part and not whole[place]:
            whole[place] += 1
            whole[whole.index(max(whole))] -= 1
    return whole


def _limits(deployments: Sequence[_Deployment]) -> Iterator[tuple[str, int]]:
    """The limits of a group, the sum of its deployments', where each has one."""
    for name, values in (
        ("requests", [each.rpm for each in deployments]),
        ("tokens", [each.tpm for each in deployments]),
    ):
        known = [value for value in values if value]
        if known and len(known) == len(values):
            yield name, sum(known)


def _report_partial_limits(group: str, deployments: Sequence[_Deployment]) -> None:
    """Report the limits that only some deployments of a group have: the sum of a group's limits is its endpoint's."""
    for name in ("rpm", "tpm"):
        limited = [each for each in deployments if getattr(each, name)]
        if len(limited) < len(deployments):
            why = f"other deployments of '{group}' have none: it is a weight at most, and limits nothing"
            for fields in (fields for each in limited for fields in each.written):
                fields.leave(name, why)


def _timeouts(
    whole: float | None,
    first: float | None,
    shared: Mapping[str, Any] = {},
) -> dict[str, Any]:
    found = dict(shared.get("timeouts", {}))
    if whole is not None:
        found |= {"whole": whole, "first_token": whole}
    if first is not None:
        found["first_token"] = first
    return {"timeouts": found} if found else {}


def _retries(count: int | None) -> dict[str, Any]:
    return {} if count is None else {"retries": {"attempts": count + 1}}


def _price(params: Fields, info: Fields) -> dict[str, float]:
    """Prices a million tokens; LiteLLM's are of one token."""
    names = {
        "prompt": "input_cost_per_token",
        "cached": "cache_read_input_token_cost",
        "completion": "output_cost_per_token",
    }
    prices: dict[str, float] = {}
    for ours, theirs in names.items():
        values = [each.take(theirs, AMOUNT) for each in (params, info)]
        value = next((each for each in values if each is not None), None)
        if value is not None:
            prices[ours] = float(f"{value * 1e6:.12g}")
    return prices
