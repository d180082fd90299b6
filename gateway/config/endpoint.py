"""The sections `endpoints.<name>`: served entities, and how they are compared.

Names follow Databricks where it has them (endpoint, served_entities, traffic_percentage).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Annotated, Literal

import msgspec

from gateway.config.base import Count, Seconds, Section, nearest
from gateway.config.limit import EndpointLimit, Price
from schemas.catalog import ClientFilters, OwnInput, Task, TensorNames

UNITS = (
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "client_request_id",
    "api_key",
    "conversation",
    "request",
)
"""Where the unit of assignment may come from, beside `header:<name>`."""

FEEDBACK_METRICS = 8
"""The most feedback metrics of an endpoint."""

TEXTLESS: Mapping[Task, str] = {"embeddings": "embeddings", "rerank": "scores", "classify": "labels"}
"""The tasks of models that generate no text, and what such models make."""
Direction = Literal["higher", "lower"]
# `fnmatch` would read brackets as sets of characters.
Alias = Annotated[str, msgspec.Meta(pattern=r"^[^\[\]\s]+$", max_length=256)]
"""Another name of an endpoint; `*` stands for any characters, `?` for one."""
Routing = Literal["hash"]
"""The names of the policies in `gateway.routing.policy`."""


class Shadow(Section, frozen=True):
    """A shadow's limits in each worker: copies at a time, more are dropped; seconds for a copy."""

    max_concurrent_requests: Count = 4
    timeout: Seconds = 60.0


class Paired(Section, frozen=True):
    """How many of the first arm's answers another arm gives again, from the same prompt and seed.

    Attributes:
        share: of the first arm's answers.
        max_concurrent_requests: pairs at a time in each worker; more are dropped.
        timeout: seconds for a pair.
        max_tokens: of prompt and answer together; longer ones are not paired.
        margin: a difference of log-likelihoods that counts as none; nats per token.
        text: whether the report shows the prompts and answers that differ most, beside their request ids.
    """

    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    max_concurrent_requests: Count = 1
    timeout: Seconds = 60.0
    max_tokens: Count = 2048
    margin: Annotated[float, msgspec.Meta(gt=0)] = 0.02
    text: bool = False


class ServedEntity(Section, frozen=True):
    """One served entity of an endpoint: a backend, and the name of a model there.

    Attributes:
        name: sent as `served-model-name`.
        backend: a section of `backends`.
        model: the model's name there, or a LoRA adapter's; None: the endpoint's name.
        traffic_percentage: with 0, it answers direct calls, and requests that the others failed.
        task: None: the endpoint's.
        shadow: makes it a shadow, which gets copies of generation requests and answers direct calls only.
        paired: has it compared with the first served entity token by token; it may be a shadow, too.
        price: of its tokens; None: its answers cost nothing.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=128)]
    backend: str
    model: str | None = None
    traffic_percentage: Annotated[int, msgspec.Meta(ge=0, le=100)] = 100
    task: Task | None = None
    shadow: Shadow | None = None
    paired: Paired | None = None
    price: Price | None = None


class Guardrail(Section, frozen=True):
    """Stops an arm whose failure rate is, with confidence, more than `worse_than` above the first arm's."""

    worse_than: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.02


class MetricGuardrail(Section, frozen=True):
    """Stops an arm that is, with confidence, worse than the first by more than `worse_than` by a metric.

    Attributes:
        metric: its name; it has a better direction. Or `cost`: of a request's tokens, at the prices of the arms.
        worse_than: of rates (`refused`, `abandoned`, ...) in absolute terms, else a share of the first arm's mean or
            quantile.
        quantile: of a time: compare this instead of the mean.
    """

    metric: str
    worse_than: Annotated[float, msgspec.Meta(ge=0)]
    quantile: Literal["p50", "p95"] | None = None


class FeedbackMetric(Section, frozen=True):
    """A metric that users send: which direction is good, and the least and the largest value that is taken."""

    better: Direction
    min: float | None = None
    max: float | None = None

    def __post_init__(self) -> None:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError("`min` is more than `max`: no value would be taken")


class Ramp(Section, frozen=True):
    """Raises an arm's share of the traffic in steps, and takes all of it away if the arm is worse than the first.

    Attributes:
        arm: the served entity.
        steps: its shares, ascending.
        hold: seconds of a step, at least.
        hold_requests: requests of the arm in a step, at least.
        metrics: those by which the arm must be no worse.
        advance: "no_worse": a step waits until the arm is, with confidence, no worse by all `metrics`, within the
            experiment's margin. "unless_worse": it only waits for `hold`.
    """

    arm: str
    steps: Annotated[tuple[Annotated[int, msgspec.Meta(ge=1, le=100)], ...], msgspec.Meta(min_length=1)] = (
        1,
        5,
        25,
        50,
        100,
    )
    hold: Seconds = 3600.0
    hold_requests: Annotated[int, msgspec.Meta(ge=0)] = 0
    metrics: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("success", "latency")
    advance: Literal["no_worse", "unless_worse"] = "no_worse"


class Experiment(Section, frozen=True):
    """How an endpoint's arms are compared.

    Attributes:
        alpha: the chance that the report ever says a false word, over all metrics and arms.
        margin: a difference that counts as none: a share of the first arm's mean; for rates (`success`, ...),
            a tenth of it in absolute terms.
        primary: the metrics that decide: they share most of alpha, and an arm is no worse only if it is so by all.
        guardrail: stops an arm that fails more often.
        guardrails: stop an arm that is worse by other metrics.
        ramp: raises an arm's share in steps.
        feedback: metrics that users send; a direction alone has no bounds.
        unit: sources of the unit of assignment, `header:<name>` or one of `UNITS`; the first that a request has counts.
            A request that has none is a unit by itself.
    """

    alpha: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    margin: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.05
    primary: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("success", "latency")
    guardrail: Guardrail | None = None
    guardrails: tuple[MetricGuardrail, ...] = ()
    ramp: Ramp | None = None
    feedback: Annotated[dict[str, Direction | FeedbackMetric], msgspec.Meta(max_length=FEEDBACK_METRICS)] = (
        msgspec.field(default_factory=dict)
    )
    unit: tuple[str, ...] = (
        "header:x-ab-unit",
        "header:x-session-affinity",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "conversation",
        "request",
    )

    @property
    def feedback_metrics(self) -> dict[str, FeedbackMetric]:
        """The metrics that users send, by name."""
        return {
            name: given if isinstance(given, FeedbackMetric) else FeedbackMetric(given)
            for name, given in self.feedback.items()
        }


class Fallback(Section, frozen=True):
    """Whether the other served entities are asked, in list order, after one failed before its first event."""

    enabled: bool = True


class Cache(Section, frozen=True):
    """Answers that are given again to the very same request, where the model would give them again.

    Attributes:
        ttl: seconds for which an answer is kept.
        max_bytes: of all answers, in each worker; the largest one is a sixteenth of it.
        shared: whether keys are given each other's answers.
        store: "memory": each worker keeps its own; "state": the state server keeps those of all gateways, as many as
            its own memory allows.
    """

    ttl: Seconds = 3600.0
    max_bytes: Annotated[int, msgspec.Meta(ge=65536)] = 64 * 1024 * 1024
    shared: bool = False
    store: Literal["memory", "state"] = "memory"


class FilterSettings(Section, frozen=True):
    """What every section `filters.<name>` has beside `kind` and the fields of the kind.

    Attributes:
        timeout: seconds for one text; then the filter has failed.
        on_failure: whether a text that a filter fails at is refused, or passes.
    """

    timeout: Seconds = 1.0
    on_failure: Literal["refuse", "pass"] = "refuse"


class OwnTensor(Section, frozen=True):
    """A Triton input; its value is sent on to a Triton remote as a request parameter. -1 in `dims` is any size."""

    datatype: Literal["BYTES", "BOOL", "INT32", "UINT32", "INT64", "UINT64", "FP32", "FP64"] = "BYTES"
    dims: tuple[int, ...] = (1,)
    required: bool = False


class Endpoint(Section, frozen=True):
    """What clients name as `model`.

    Attributes:
        served_entities: percentages add up to 100; the first one is an experiment's control.
        aliases: other names, or patterns of names, that clients may use for it.
        task: what listings say, "chat" by default. If it is declared, Databricks' clients must send the fields of that
            task.
        routing: the policy that picks the served entity.
        experiment: how served entities are compared.
        fallback: whether others are asked after a failure.
        cache: keeps answers; None: none.
        filters: the names of `filters` that see its texts, in this order.
        client_filters: the filters that Databricks' clients have set, after those.
        limits: of all requests together, or those of each key or user.
        usage_tracking: False: its requests have no records of usage. Databricks' clients may set it.
        inputs, outputs: other names for Triton's tensors.
        own_inputs: Triton inputs beside the usual ones, and which of those must be given.
    """

    served_entities: tuple[ServedEntity, ...]
    aliases: tuple[Alias, ...] = ()
    task: Task | None = None
    routing: Routing = "hash"
    experiment: Experiment = Experiment()
    fallback: Fallback = Fallback()
    cache: Cache | None = None
    filters: tuple[str, ...] = ()
    client_filters: ClientFilters = ClientFilters()
    limits: tuple[EndpointLimit, ...] = ()
    usage_tracking: bool | None = None
    inputs: dict[str, str] = msgspec.field(default_factory=dict)
    outputs: dict[str, str] = msgspec.field(default_factory=dict)
    own_inputs: dict[str, OwnTensor] = msgspec.field(default_factory=dict)

    @property
    def has_experiment(self) -> bool:
        """Whether its requests are counted: it has several served entities, or takes feedback."""
        return len(self.served_entities) > 1 or bool(self.experiment.feedback)

    @property
    def is_filtered(self) -> bool:
        """Whether filters see its texts."""
        return bool(self.filters) or self.client_filters != ClientFilters()

    @property
    def tensors(self) -> TensorNames:
        """The endpoint's names for Triton's tensors."""
        own = {name: OwnInput(each.datatype, each.dims, each.required) for name, each in self.own_inputs.items()}
        return TensorNames(self.inputs, self.outputs, own)


def lacks_package(endpoint: Endpoint) -> str | None:
    """What this machine lacks to compare an endpoint's arms, as a text to append to its name; None: nothing."""
    if not endpoint.has_experiment or find_spec("numpy") is not None:
        return None
    return ": served entities and feedback are compared with NumPy: pip install 'interlingua[experiments]'"


Wrong = tuple[tuple[str | int, ...], str]
"""A mistake in an endpoint: its path below it, and a text to append to the endpoint's name."""


def wrong_endpoint(endpoint: Endpoint, backends: Collection[str]) -> str | None:
    """The first mistake in an endpoint, as a text to append to its name; None if there is none."""
    return next((text for _, text in wrong_in_endpoint(endpoint, backends)), None)


def wrong_in_endpoint(endpoint: Endpoint, backends: Collection[str]) -> Iterator[Wrong]:
    """All mistakes in an endpoint."""
    arms = endpoint.served_entities
    if not arms:
        yield ("served_entities",), ": `served_entities` is empty"
        return
    yield from _wrong_arms(arms, backends)
    if (total := sum(arm.traffic_percentage for arm in arms)) != 100:
        yield (), f": traffic percentages add up to {total}, not 100"
    # Names identify arms in assignment, metrics and `endpoint:served`.
    if len({arm.name for arm in arms}) != len(arms):
        yield (), ": two served entities have the same name"
    for unit in endpoint.experiment.unit:
        if unit not in UNITS and not unit.startswith("header:"):
            text = f": there is no unit '{unit}'; there are header:<name>, {', '.join(UNITS)}"
            yield ("experiment", "unit"), text
    if wrong := _wrong_ramp(endpoint):
        yield ("experiment", "ramp"), wrong
    # An answer out of the cache says nothing about an arm, and its time would be compared.
    compared = sum(bool(arm.traffic_percentage or arm.shadow or arm.paired) for arm in arms) > 1
    if endpoint.cache is not None and (compared or endpoint.experiment.feedback):
        yield ("cache",), ".cache: the answers of an endpoint whose served entities are compared cannot be cached"
    if endpoint.is_filtered and any(arm.shadow or arm.paired for arm in arms):
        yield ("filters",), ".filters: shadows and paired served entities would get texts that are not filtered"
    if wrong := _wrong_task(endpoint):
        yield ("task",) if endpoint.task is not None else (), wrong


def _wrong_arms(arms: Sequence[ServedEntity], backends: Collection[str]) -> Iterator[Wrong]:
    for place, arm in enumerate(arms):
        at = ("served_entities", place)
        if arm.backend not in backends:
            text = f".{arm.name}: no backend is called '{arm.backend}'{nearest(arm.backend, backends)}"
            yield (*at, "backend"), text
        if arm.shadow is not None and arm.traffic_percentage:
            yield at, f".{arm.name}: a shadow answers no client, so its `traffic_percentage` must be 0"
    if arms[0].shadow is not None and len(arms) > 1:
        text = "the first served entity is the one that others are compared with; a shadow goes after it"
        yield ("served_entities", 0), f".{arms[0].name}: {text}"
    if arms[0].paired is not None:
        text = f".{arms[0].name}: the first served entity is the one that others are `paired` with"
        yield ("served_entities", 0), text


def _wrong_ramp(endpoint: Endpoint) -> str | None:
    if (ramp := endpoint.experiment.ramp) is None:
        return None
    others = {arm.name: arm for arm in endpoint.served_entities[1:]}
    if ramp.arm not in others:
        return f".experiment.ramp: '{ramp.arm}' is none of the served entities after the first"
    if others[ramp.arm].shadow is not None:
        return f".experiment.ramp: '{ramp.arm}' is a shadow, which answers no client"
    if any(one >= other for one, other in pairwise(ramp.steps)):
        return ".experiment.ramp: `steps` must ascend"
    return None


def _wrong_task(endpoint: Endpoint) -> str | None:
    declared = endpoint.task or "chat"
    first = endpoint.served_entities[0]
    for arm in endpoint.served_entities:
        if (arm.task or declared) != (first.task or declared):
            one, other = (
                f"'{first.name}' ({first.task or declared})",
                f"'{arm.name}' ({arm.task or declared})",
            )
            return f": served entities must have the same task, and {one} and {other} do not"
    if endpoint.task is not None and first.task not in (None, endpoint.task):
        return f".{first.name}: its task is {first.task}, the endpoint's {endpoint.task}"
    return None
