"""The router: an endpoint's name to the plan of a request. What decides between targets is a `Policy`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec

from backends.base import Backend, Capabilities
from backends.features import can_answer
from gateway.config import Endpoint, aliases_of
from gateway.filters.chain import FilterChain
from gateway.filters.guarded import NONE, GuardedFilter
from gateway.routing.policy import policy_for
from gateway.routing.target import Plan, Target
from gateway.storage.answer_cache import AnswerCache, StoreOf, in_memory
from schemas.catalog import ClientFilters
from schemas.errors import ModelNotFound
from schemas.ir import Request


class Router:
    """The endpoints' targets.

    The only state is which served entities the guardrails have stopped. What leaves no choice has a plan made once: an
    endpoint of a single served entity, and a served entity that the client names (`endpoint:served`).

    Args:
        endpoints: by name.
        backends: by name; started elsewhere.
        filters: by name.
        answers: where cached answers are kept.
        starting: the backends that still load for the first time, now and later.

    Attributes:
        asks_directly: whether any served entity may be asked without a task (`backends.direct`).
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        backends: Mapping[str, Backend],
        filters: Mapping[str, GuardedFilter] = NONE,
        answers: StoreOf = in_memory,
        starting: Collection[str] = frozenset(),
    ) -> None:
        routes = {
            name: _Route(name, endpoint, backends, filters, answers, starting) for name, endpoint in endpoints.items()
        }
        # Without an experiment there is nothing to decide: such endpoints need no unit and no hash per request.
        self._routes = {name: route for name, route in routes.items() if endpoints[name].has_experiment}
        self._fixed = {
            f"{name}:{target.entity.name}": Plan((target,), has_experiment=name in self._routes)
            for name, route in routes.items()
            for target in route.targets
        }
        # Later entries win: an endpoint whose name contains a colon goes before `endpoint:served` of another.
        self._fixed |= {name: Plan(route.targets) for name, route in routes.items() if name not in self._routes}
        self.asks_directly = any(target.direct is not None for route in routes.values() for target in route.targets)
        self._aliases = aliases_of(endpoints)
        # Endpoints of a base model alone, whose LoRA adapters clients may name.
        self._bases = [
            route.targets[0]
            for route in routes.values()
            if len(route.targets) == 1 and route.targets[0].entity.model is None
        ]

    def plan(self, request: Request, headers: Mapping[str, str]) -> Plan:
        """The targets of a request: of its endpoint, or the very served entity if the model is `endpoint:served`.

        Raises:
            schemas.errors.ModelNotFound: there is no such endpoint, alias or served entity.
        """
        if (route := self._routes.get(request.model)) is not None:
            return route.plan(request, headers)
        plan = self._fixed.get(request.model)
        # Aliases are tried last: a name of its own goes before an alias.
        if plan is None and (name := self._aliases.endpoint(request.model)) is not None:
            plan = self._plan(name, request, headers)
        if plan is None:
            plan = self._lora_plan(request.model)
        if plan is not None:
            return plan
        hint = self._same_letters(request.model)
        raise ModelNotFound(f"The model '{request.model}' does not exist{hint}.", param="model", code="model_not_found")

    def _same_letters(self, model: str) -> str:
        """The end of a sentence that names the model which differs in its case alone, if there is one."""
        name = next((name for name in (*self._routes, *self._fixed) if name.lower() == model.lower()), None)
        return "" if name is None else f"; did you mean '{name}'? Case matters"

    def _plan(self, name: str, request: Request, headers: Mapping[str, str]) -> Plan | None:
        if (route := self._routes.get(name)) is not None:
            return route.plan(request, headers)
        return self._fixed.get(name)

    def _lora_plan(self, name: str) -> Plan | None:
        """The plan of a LoRA adapter's own name, as of one loaded while serving: the first model that has it."""
        for target in self._bases:
            if name in target.backend.capabilities.lora_adapters:
                return Plan((replace(target, entity=msgspec.structs.replace(target.entity, model=name), model=name),))
        return None

    def stop(self, stopped: Mapping[str, Collection[str]]) -> None:
        """Assign no unit to these served entities, by endpoint, unless an endpoint has no other."""
        for name, route in self._routes.items():
            route.stop(stopped.get(name, ()))


class _Route:
    """One endpoint's targets and policy."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        backends: Mapping[str, Backend],
        filters: Mapping[str, GuardedFilter],
        answers: StoreOf,
        starting: Collection[str],
    ) -> None:
        self._policy = policy_for(name, endpoint)
        chosen = [filters[each] for each in endpoint.filters]
        if endpoint.client_filters != ClientFilters():
            # Imported where a client has set some: `regex` takes 0.02 s of a worker's start.
            from gateway.filters.client import client_filters

            chosen += client_filters(endpoint.client_filters)
        chain = FilterChain(chosen) if chosen else None
        self.targets = tuple(
            Target(
                name,
                entity,
                backends[entity.backend],
                entity.model or name,
                endpoint.task or entity.task or "chat",
                float(entity.traffic_percentage),
                AnswerCache(endpoint.cache, answers(name, endpoint, entity)) if endpoint.cache is not None else None,
                chain,
            )
            for entity in endpoint.served_entities
        )
        # A shadow gets copies, and answers clients that name it; the policy never picks it.
        self._live = tuple(target for target in self.targets if target.entity.shadow is None)
        self._live_backends = [*dict.fromkeys(target.backend for target in self._live)]  # arms may share one
        self._know()
        self._candidates = self._live
        self._stopped: frozenset[str] = frozenset()
        self._first = self.targets[0].entity
        self._shadows = tuple(target for target in self.targets if target.entity.shadow is not None)
        self._paired = tuple(target for target in self.targets if target.entity.paired is not None)
        self._falls_back = endpoint.fallback.enabled
        self._starting = starting

    def plan(self, request: Request, headers: Mapping[str, str]) -> Plan:
        # A native backend's capabilities are replaced once its model is loaded; else these are the same objects.
        for backend, known in self._known:
            if backend.capabilities is not known:
                self._know()
                break
        candidates = self._candidates if self._are_alike else self._able(request)
        order = self._policy.order(request, headers, candidates)
        targets = order.targets
        only_one_arm = len(candidates) < len(self._live)
        # Pairs compare with the control's answers, so only requests assigned to the control can make one.
        paired = self._paired if targets[0].entity is self._first and not only_one_arm else ()
        targets = targets if self._falls_back else targets[:1]
        arm_loads = bool(self._starting) and self._an_arm_loads()  # the set is empty for nearly all requests
        return Plan(targets, order.unit, self._shadows, paired, True, only_one_arm, arm_loads)

    def _an_arm_loads(self) -> bool:
        return any(target.weight and target.entity.backend in self._starting for target in self._candidates)

    def _know(self) -> None:
        """Look at what the arms can do now, and whether all take the same kinds of requests."""
        self._known = [(backend, backend.capabilities) for backend in self._live_backends]
        self._are_alike = len({_kinds(known) for _, known in self._known if known.known}) <= 1

    def _able(self, request: Request) -> tuple[Target, ...]:
        """The targets that take a request of this kind; all if none does: the assigned one then says why not."""
        able = tuple(target for target in self._candidates if can_answer(request, target.backend.capabilities))
        if len(able) in (0, len(self._candidates)):
            return self._candidates
        # An arm that alone takes such requests gets them also without a share.
        return able if any(target.weight for target in able) else tuple(replace(each, weight=1.0) for each in able)

    def stop(self, names: Collection[str]) -> None:
        if (stopped := frozenset(names)) == self._stopped:
            return
        self._stopped = stopped
        weighted = tuple(
            replace(target, weight=0.0) if target.entity.name in names else target for target in self._live
        )
        # Assignment needs a positive weight: if all arms with traffic are stopped, the stops have no effect. A stopped
        # arm stays in the list, as a fallback.
        self._candidates = weighted if any(target.weight for target in weighted) else self._live


def _kinds(capabilities: Capabilities) -> tuple[object, ...]:
    """The part of a backend's capabilities that says which requests it takes."""
    can = capabilities
    kinds = (can.generates, can.raw_text, can.embeddings, can.max_choices)
    return *kinds, can.features, can.relays, can.scoring, can.lora_adapters
