"""What is deployed under each endpoint's name: the configuration's endpoints, and what was changed since.

Pure functions from state to state: `gateway.deployment.state_file` keeps it, `gateway.service` serves it. An endpoint
has one configuration in force and at most one that waits for its backends; until then the one in force answers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from backends.base import Health
from gateway.config import ConfigError, Endpoint, Section, ServedEntity, wrong_endpoint
from schemas.catalog import Change
from schemas.catalog import ServedEntity as Arm
from schemas.errors import Conflict, InvalidRequest, ModelNotFound

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")


class Deployment(Section, frozen=True):
    """One endpoint's configurations.

    Attributes:
        endpoint: in force; None: it is new, and waits.
        pending: waits for its backends.
        version: of the one in force, from 1.
        since: when that was put in force; Unix time in nanoseconds, 0 for one from the configuration file.
        failed: why the last one that waited was given up.
    """

    endpoint: Endpoint | None = None
    pending: Endpoint | None = None
    version: int = 1
    since: int = 0
    failed: str = ""

    @property
    def serving(self) -> Endpoint:
        """What answers: a new endpoint does its best while it waits."""
        found = self.endpoint or self.pending
        assert found is not None
        return found


Deployments = Mapping[str, Deployment]


class State(Section, frozen=True):
    """What was changed since the configuration was written; null: deleted."""

    endpoints: dict[str, Deployment | None] = msgspec.field(default_factory=dict)


def deployed(endpoints: Mapping[str, Endpoint], state: State, backends: Collection[str]) -> Deployments:
    """All deployments: those of the configuration, as far as the state does not say otherwise.

    Raises:
        ConfigError: the state names a backend that is not configured any more, or makes no sense.
    """
    found: dict[str, Deployment | None] = {name: Deployment(endpoint=endpoint) for name, endpoint in endpoints.items()}
    found |= state.endpoints
    present = {name: deployment for name, deployment in found.items() if deployment is not None}
    for name, deployment in present.items():
        if deployment.endpoint is None and deployment.pending is None:
            raise ConfigError(f"endpoints.{name}: there is neither `endpoint` nor `pending`")
        for endpoint in (deployment.endpoint, deployment.pending):
            if endpoint is not None and (wrong := wrong_endpoint(endpoint, backends)):
                raise ConfigError(f"endpoints.{name}{wrong}")
    return present


def changed(present: Deployments, change: Change, health: Mapping[str, Health], now: int) -> Deployment | None:
    """The endpoint's deployment after a change; None: it is deleted.

    Args:
        present: all deployments.
        change: what is asked for.
        health: of all backends, by name.
        now: Unix time in nanoseconds.

    Raises:
        schemas.errors.ModelNotFound: there is no such endpoint to change.
        schemas.errors.Conflict: there is one already, or an update of it is under way.
        schemas.errors.InvalidRequest: it would make no sense.
    """
    name, old = change.endpoint, present.get(change.endpoint)
    if change.action == "create":
        if old is not None:
            raise Conflict(f"Endpoint with name '{name}' already exists.")
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"'{name}' cannot be an endpoint's name.", param="name")
        new = Deployment(pending=_endpoint(change, None, health), version=0, since=now)
        return settled(new, health, now)
    if old is None:
        raise ModelNotFound(f"Endpoint with name '{name}' does not exist.")
    if change.action == "delete":
        return None
    if old.pending is not None:
        raise Conflict(f"Endpoint '{name}' is being updated.")
    return settled(replace(old, pending=_endpoint(change, old.endpoint, health), failed=""), health, now)


def settled(deployment: Deployment, health: Mapping[str, Health], now: int) -> Deployment:
    """The deployment once more: what waits is put in force if all backends that it newly sends requests to are ready,
    and given up if one of them has failed; a new endpoint, which replaces nothing, waits on.
    """
    pending, endpoint = deployment.pending, deployment.endpoint
    if pending is None:
        return deployment
    new = sorted(_used(pending) - (_used(endpoint) if endpoint is not None else set()))
    if endpoint is not None and (failed := [name for name in new if health[name].status == "failed"]):
        why = f"The backend '{failed[0]}' has failed."
        return replace(deployment, pending=None, failed=why)
    if any(health[name].status != "ready" for name in new):
        return deployment
    since = now if endpoint is not None else deployment.since
    return Deployment(endpoint=pending, version=deployment.version + 1, since=since)


def entity_name(arm: ServedEntity) -> str:
    """What Databricks' clients know an arm's model by: `backend/model`, or the backend alone."""
    return arm.backend if arm.model is None else f"{arm.backend}/{arm.model}"


def _used(endpoint: Endpoint) -> set[str]:
    return {arm.backend for arm in endpoint.served_entities if arm.traffic_percentage}


def _endpoint(change: Change, old: Endpoint | None, backends: Collection[str]) -> Endpoint:
    before = old or Endpoint(served_entities=())
    try:
        made = [msgspec.convert(_arm(arm), ServedEntity) for arm in change.served_entities]
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"A served entity is wrong: {error}", param="config.served_entities") from None
    endpoint = replace(before, served_entities=tuple(_as_before(arm, before, first=arm is made[0]) for arm in made))
    if wrong := wrong_endpoint(endpoint, backends):
        raise InvalidRequest(f"{change.endpoint}{wrong}", param="config.served_entities")
    return endpoint


def _as_before(arm: ServedEntity, before: Endpoint, *, first: bool) -> ServedEntity:
    """What Databricks' clients cannot say stays: a shadow is one as long as it gets no share, and a paired arm is
    paired as long as it is not the first.
    """
    for old in before.served_entities:
        if old.name == arm.name:
            shadow = None if arm.traffic_percentage else old.shadow
            return replace(arm, shadow=shadow, paired=None if first else old.paired)
    return arm


def _arm(arm: Arm) -> dict[str, Any]:
    backend, _, model = arm.entity_name.partition("/")
    return {
        "name": arm.name,
        "backend": backend,
        "model": model or None,
        "traffic_percentage": arm.traffic_percentage,
    }
