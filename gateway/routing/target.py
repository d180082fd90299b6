"""What routing decides: a target for each served entity, and the plan for a request. Data, no decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from backends.base import AnswersWhole, Backend, FeedsSink
from backends.direct import AsksDirectly
from gateway.config import ServedEntity, Task
from gateway.filters.chain import FilterChain
from gateway.routing.assignment import Unit
from gateway.storage.answer_cache import AnswerCache
from schemas.errors import ModelNotFound
from schemas.ir import Generate, Request, Tokenize
from schemas.origin import Relay

_Request = TypeVar("_Request", bound=Request)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A served entity with its backend.

    Attributes:
        endpoint: the endpoint's name.
        entity: the served entity as configured.
        backend: answers for it.
        model: the name that the backend knows, its model's or one of its LoRA adapters'.
        task: the endpoint's.
        weight: share of the traffic; 0 if the guardrail has stopped the entity.
        cache: its answers; None: they are not kept.
        filters: see the texts of its requests and answers; None: there are none.
        series: the labels of its metrics: endpoint, served entity, backend.
        whole: the backend, if it gives whole answers at once.
        feeding: the backend, if it gives batches of a stream at once.
        direct: the backend, if it can be asked without a task.
    """

    endpoint: str
    entity: ServedEntity
    backend: Backend
    model: str
    task: Task = "chat"
    weight: float = 0.0
    cache: AnswerCache | None = None
    filters: FilterChain | None = None
    series: tuple[str, str, str] = field(init=False)
    whole: AnswersWhole | None = field(init=False)
    feeding: FeedsSink | None = field(init=False)
    direct: AsksDirectly | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "series", (self.endpoint, self.entity.name, self.entity.backend))
        object.__setattr__(self, "whole", self.backend if isinstance(self.backend, AnswersWhole) else None)
        object.__setattr__(self, "feeding", self.backend if isinstance(self.backend, FeedsSink) else None)
        object.__setattr__(self, "direct", self.backend if isinstance(self.backend, AsksDirectly) else None)

    def addressed(self, request: _Request) -> _Request:
        """The request as the backend is to get it. A LoRA adapter that the client chose goes before the entity's.

        Raises:
            schemas.errors.ModelNotFound: the entity names a LoRA adapter that the backend does not have.
        """
        if self.filters is not None and not isinstance(request, Relay):
            request = replace(request, origin=None)  # the body as it came, which no filter has seen
        can, named = self.backend.capabilities, self.entity.model
        if isinstance(request, Generate) and named is None:
            return replace(request, model=self.model, model_given=False)
        if not can.models_are_loras or named is None or isinstance(request, Tokenize | Relay):
            return replace(request, model=self.model)  # a new request: others may hold the old one (fallbacks, shadows)
        # Checked per request: a backend's LoRA adapters are known only once it is ready, and come and go.
        if named not in can.lora_adapters:
            raise ModelNotFound(
                f"The backend '{self.entity.backend}' has no LoRA adapter '{named}'.", code="model_not_found"
            )
        return replace(request, model=named, lora_adapter=request.lora_adapter or named)


class Plan(msgspec.Struct, frozen=True, eq=False):
    """Where a request goes.

    Attributes:
        targets: in the order in which they are asked; the first is the assigned one.
        unit: what the request was assigned by; None if there was nothing to assign: the client named the served entity,
            or the endpoint has only one.
        shadows: get copies and never answer.
        paired: answer again what the first target answered, if that is the endpoint's first served entity.
        has_experiment: whether the request counts in the endpoint's experiment.
        only_one_arm: whether not every arm can answer the request, so that nothing can be compared by it.
        arm_loads: whether an arm with traffic was still loading for the first time, so that others may answer for it
            and nothing can be compared either.
    """

    targets: tuple[Target, ...]
    unit: Unit | None = None
    shadows: tuple[Target, ...] = ()
    paired: tuple[Target, ...] = ()
    has_experiment: bool = False
    only_one_arm: bool = False
    arm_loads: bool = False
