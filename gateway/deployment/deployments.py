"""Deployments: the endpoints of the configuration file, and the changes made to them while serving.

Pure functions from state to state: `gateway.deployment.state_file` stores the state, `gateway.service` serves it. An
endpoint has one configuration in force, and at most one pending, which waits for its backends; until they are ready the
one in force answers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from backends.base import Backend, Health
from gateway.config import (
    TEXTLESS,
    ConfigError,
    Endpoint,
    EndpointLimit,
    Fallback,
    Section,
    ServedEntity,
    lacks_package,
    nearest,
    wrong_endpoint,
)
from gateway.deployment.ramp import Move, RampState, moved, with_share
from gateway.experiments.metrics import wrong_metrics
from gateway.storage.shared.document import Revised
from schemas.catalog import Change
from schemas.catalog import ServedEntity as ListedEntity
from schemas.errors import Conflict, InvalidRequest, ModelNotFound

# Databricks' rule for endpoint names. A name is part of paths and of `endpoint:served`, so it has no slash or colon.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


class Deployment(Section, frozen=True):
    """The configurations of one endpoint.

    Attributes:
        endpoint: the one in force; None: the endpoint is new, and its first one is pending.
        pending: the one that waits for its backends.
        version: number of the one in force, from 1.
        since: when it came into force; Unix time in nanoseconds, 0 for one from the configuration file.
        failed: why the last pending one was given up; empty if it was not.
        ramp: how far the ramp has come that the configuration asks for; None: it has not begun.
    """

    endpoint: Endpoint | None = None
    pending: Endpoint | None = None
    version: int = 1
    since: int = 0
    failed: str = ""
    ramp: RampState | None = None

    @property
    def serving(self) -> Endpoint:
        """The configuration that answers: a new endpoint answers with its pending one, as far as that can."""
        found = self.endpoint or self.pending
        assert found is not None
        return found


Deployments = Mapping[str, Deployment]


class State(Revised, frozen=True):
    """What was changed while serving.

    Attributes:
        endpoints: those that were changed, which override the configuration file; null: deleted.
        resets: when the figures of endpoints' experiments were last reset; Unix time in nanoseconds.
    """

    endpoints: dict[str, Deployment | None] = msgspec.field(default_factory=dict)
    resets: dict[str, int] = msgspec.field(default_factory=dict)


def deployed(
    endpoints: Mapping[str, Endpoint], state: State, backends: Collection[str], filters: Collection[str] = ()
) -> Deployments:
    """Return all deployments: the state's, and those of the configuration that it does not override.

    Args:
        endpoints: those of the configuration.
        state: what was changed while serving.
        backends: the names of those that are configured.
        filters: likewise.

    Raises:
        ConfigError: the state names a backend or a filter that is no longer configured, or is invalid otherwise.
    """
    found: dict[str, Deployment | None] = {name: Deployment(endpoint=endpoint) for name, endpoint in endpoints.items()}
    found |= state.endpoints
    present = {
        name: _with_aliases(deployment, endpoints[name].aliases if name in endpoints else ())
        for name, deployment in found.items()
        if deployment is not None
    }
    for name, deployment in present.items():
        if deployment.endpoint is None and deployment.pending is None:
            raise ConfigError(f"endpoints.{name}: there is neither `endpoint` nor `pending`")
        for endpoint in (deployment.endpoint, deployment.pending):
            # The state may be older than the configuration file: a backend it names may be gone from that.
            if endpoint is not None and (wrong := wrong_endpoint(endpoint, backends)):
                raise ConfigError(f"endpoints.{name}{wrong}")
    for name, kept in state.endpoints.items():
        if kept is not None and (gone := _filters_of(kept) - {*filters}):
            what = f"there is no filter '{min(gone)}'{nearest(min(gone), filters)}"
            raise ConfigError(f"endpoints.{name}.filters: {what} (from the state file)")
    return present


def _filters_of(deployment: Deployment) -> set[str]:
    configured = (deployment.endpoint, deployment.pending)
    return {name for endpoint in configured if endpoint is not None for name in endpoint.filters}


def _with_aliases(deployment: Deployment, aliases: tuple[str, ...]) -> Deployment:
    """The deployment with the configuration file's aliases, which no change while serving can set."""
    configured = (
        endpoint and replace(endpoint, aliases=aliases) for endpoint in (deployment.endpoint, deployment.pending)
    )
    endpoint, pending = configured
    return replace(deployment, endpoint=endpoint, pending=pending)


def changed(
    present: Deployments,
    change: Change,
    health: Mapping[str, Health],
    now: int,
    generates: Mapping[str, bool] = MappingProxyType({}),
) -> Deployment | None:
    """Return an endpoint's deployment after a change; None: it is deleted.

    Args:
        present: all deployments.
        change: the requested change.
        health: of all backends, by name.
        now: Unix time in nanoseconds.
        generates: of `generating`.

    Raises:
        schemas.errors.ModelNotFound: there is no such endpoint to change.
        schemas.errors.Conflict: the endpoint to create exists already, or an update of it is pending.
        schemas.errors.InvalidRequest: the new configuration would be invalid.
    """
    name, old = change.endpoint, present.get(change.endpoint)
    if change.action == "create":
        if old is not None:
            raise Conflict(f"Endpoint with name '{name}' already exists.")
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"'{name}' is no valid endpoint name: 1 to 63 letters, digits, '-' and '_'.", param="name"
            )
        new = Deployment(pending=_endpoint(change, None, health, generates), version=0, since=now)
        return settled(new, health, now)
    if old is None:
        raise ModelNotFound(f"Endpoint with name '{name}' does not exist.")
    if change.action == "delete":
        return None
    if change.action == "configure":
        return replace(old, endpoint=_configure(old.endpoint, change), pending=_configure(old.pending, change))
    # As Databricks answers: one update at a time, and a second one is a conflict (409).
    if old.pending is not None:
        raise Conflict(f"Endpoint '{name}' is being updated.")
    wanted = _endpoint(change, old.endpoint, health, generates)
    if wanted == old.endpoint:
        return old  # a repeated change is none: no new version
    return settled(replace(old, pending=wanted, failed=""), health, now)


def _configure(endpoint: Endpoint | None, change: Change) -> Endpoint | None:
    if endpoint is None:
        return None
    fallback = endpoint.fallback if change.fallback is None else Fallback(enabled=change.fallback)
    tracking = endpoint.usage_tracking if change.usage_tracking is None else change.usage_tracking
    limits = endpoint.limits
    if change.rate_limits is not None:
        given = (EndpointLimit(per=each.per, requests=each.requests, tokens=each.tokens) for each in change.rate_limits)
        # Other limits are not in the client's sight, which sets all that it sees.
        limits = (*given, *(limit for limit in limits if not limit.is_rate or limit.per == "user"))
    filters = endpoint.client_filters if change.filters is None else change.filters
    made = replace(endpoint, fallback=fallback, usage_tracking=tracking, limits=limits, client_filters=filters)
    # The only setting that other settings may forbid.
    if change.filters is not None and (wrong := wrong_endpoint(made, [arm.backend for arm in made.served_entities])):
        raise InvalidRequest(f"{change.endpoint}{wrong}", param="guardrails")
    return made


def settled(deployment: Deployment, health: Mapping[str, Health], now: int) -> Deployment:
    """Return the deployment with its pending configuration in force, if all backends to which it newly sends requests
    are ready, or without it, if one of them has failed; otherwise unchanged. A new endpoint's, which replaces nothing,
    is never given up.
    """
    pending, endpoint = deployment.pending, deployment.endpoint
    if pending is None:
        return deployment
    # Backends that the endpoint uses already cannot make the update worse than what is in force.
    new = sorted(_used_backends(pending) - (_used_backends(endpoint) if endpoint is not None else set()))
    # Failed: the update is given up. Loading (below): it stays pending.
    if endpoint is not None and (failed := [name for name in new if health[name].status == "failed"]):
        return replace(deployment, pending=None, failed=f"The backend '{failed[0]}' has failed.")
    if any(health[name].status != "ready" for name in new):
        return deployment
    # A new endpoint has answered by its pending configuration since its creation (`serving`), so its experiment, which
    # `since` identifies, goes on.
    since = now if endpoint is not None else deployment.since
    # Somebody has changed what the ramp was raising: it must not go on as if nothing had happened.
    ramp = deployment.ramp
    if ramp is not None and ramp.status == "running":
        ramp = replace(ramp, status="ended")
    return Deployment(endpoint=pending, version=deployment.version + 1, since=since, ramp=ramp)


def ramped(deployment: Deployment, seen: RampState | None, move: Move, reason: str, now: int) -> Deployment:
    """Return the deployment after a move of its ramp; unchanged if another worker has moved it since, if an update is
    pending, or if the endpoint has no ramp any more.

    Args:
        deployment: as it is now.
        seen: the ramp's state on which the move was decided.
        move: what to do.
        reason: why.
        now: Unix time in nanoseconds.
    """
    endpoint = deployment.endpoint
    if endpoint is None or deployment.pending is not None or deployment.ramp != seen:
        return deployment
    found = moved(endpoint, seen, move, reason, now) if endpoint.experiment.ramp is not None else None
    if found is None:
        return deployment
    new, state = found
    if new == endpoint:  # the last step has held
        return replace(deployment, ramp=state)
    return replace(deployment, endpoint=new, version=deployment.version + 1, since=now, ramp=state)


def restarted(name: str, deployment: Deployment, now: int) -> Deployment:
    """Return the deployment with its ramp at the beginning: the arm has no share, and the first step is still to come.

    Args:
        name: the endpoint's.
        deployment: as it is now.
        now: Unix time in nanoseconds.

    Raises:
        schemas.errors.InvalidRequest: the endpoint has no ramp.
        schemas.errors.Conflict: an update of it is pending.
    """
    endpoint = deployment.endpoint
    if endpoint is None or deployment.pending is not None:
        raise Conflict(f"Endpoint '{name}' is being updated.")
    if (ramp := endpoint.experiment.ramp) is None:
        raise InvalidRequest(f"The endpoint '{name}' has no ramp.")
    new = with_share(endpoint, ramp.arm, 0)
    return replace(deployment, endpoint=new, version=deployment.version + 1, since=now, ramp=None)


def entity_name(entity: ServedEntity) -> str:
    """Return the name of a served entity's model in Databricks' API: `backend/model`, or the backend alone."""
    return entity.backend if entity.model is None else f"{entity.backend}/{entity.model}"


def _used_backends(endpoint: Endpoint) -> set[str]:
    # An arm without traffic (a shadow, a fallback) holds up no update.
    return {entity.backend for entity in endpoint.served_entities if entity.traffic_percentage}


def generating(backends: Mapping[str, Backend]) -> dict[str, bool]:
    """Whether a backend generates text (True), or embeddings or scores only, by name, of those of which it is known."""
    found = ((name, backend.capabilities.generates) for name, backend in backends.items())
    return {name: generates for name, generates in found if generates is not None}


def mixed_kinds(endpoint: Endpoint, generates: Mapping[str, bool]) -> str | None:
    """Which served entities cannot answer the same requests, as a text to append to the endpoint's name; None: all can.

    Args:
        endpoint: its served entities. With a declared task of `TEXTLESS` none has to generate text.
        generates: of `generating`.
    """
    if endpoint.task in TEXTLESS:
        return None
    arms = [arm for arm in endpoint.served_entities if arm.backend in generates]
    text = [arm.name for arm in arms if generates[arm.backend]]
    embeddings = [arm.name for arm in arms if not generates[arm.backend]]
    if not text or not embeddings:
        return None
    return f": '{text[0]}' generates text, and '{embeddings[0]}' makes embeddings only"


def _endpoint(
    change: Change, old: Endpoint | None, backends: Collection[str], generates: Mapping[str, bool]
) -> Endpoint:
    before = old or Endpoint(served_entities=())
    try:
        made = [msgspec.convert(_configured(entity), ServedEntity) for entity in change.served_entities]
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"A served entity is wrong: {error}", param="config.served_entities") from None
    kept = (_with_kept_settings(entity, before, first=entity is made[0]) for entity in made)
    # An update lists served entities only; routing, experiment and fallback stay as they were.
    endpoint = replace(before, served_entities=tuple(kept))
    # All for which a start would refuse the state file, so that no such state is ever written.
    wrong = wrong_endpoint(endpoint, backends) or wrong_metrics(endpoint)
    if wrong := wrong or mixed_kinds(endpoint, generates) or lacks_package(endpoint):
        raise InvalidRequest(f"{change.endpoint}{wrong}", param="config.served_entities")
    return endpoint


def _with_kept_settings(entity: ServedEntity, before: Endpoint, *, first: bool) -> ServedEntity:
    """Keep the settings that Databricks' API cannot express: a shadow stays one as long as it gets no share, and a
    paired served entity stays paired as long as it is not the first. Task and price are those of a model: they stay as
    long as backend and model do.
    """
    for old in before.served_entities:
        if old.name == entity.name:
            kept = replace(
                entity,
                shadow=None if entity.traffic_percentage else old.shadow,
                paired=None if first else old.paired,
            )
            same = (entity.backend, entity.model) == (old.backend, old.model)
            return replace(kept, task=old.task, price=old.price) if same else kept
    return entity


def _configured(entity: ListedEntity) -> dict[str, Any]:
    backend, _, model = entity.entity_name.partition("/")
    return {
        "name": entity.name,
        "backend": backend,
        "model": model or None,
        "traffic_percentage": entity.traffic_percentage,
    }
