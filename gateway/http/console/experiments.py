"""What the console shows of an experiment: its report, how its intervals moved, and who changed what."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gateway.config import Ramp
from gateway.deployment.change_log import ChangeEntry
from gateway.experiments.metrics import metrics_of
from gateway.rollout.timeline import Point
from gateway.service import Service
from schemas.errors import ModelNotFound


class MetricView(msgspec.Struct, frozen=True):
    """A metric's direction and kind, as `gateway.experiments.metrics.Metric` has them."""

    better: str | None
    kind: str


class ExperimentView(msgspec.Struct, frozen=True):
    """An experiment. `report` is a `gateway.rollout.full_report.FullReport`, whose module imports NumPy."""

    report: Any
    metrics: dict[str, MetricView]
    margin: float
    ramp: Ramp | None
    timeline: list[Point]
    changes: list[ChangeEntry]


class ExperimentViews:
    """The views of experiments as JSON. A report takes milliseconds, which all tabs that ask for it together share.

    Args:
        service: what is shown.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._kept: dict[str, tuple[float, bytes]] = {}

    def of(self, endpoint: str, max_age: float) -> bytes:
        """The view of an endpoint's experiment, of now or at most `max_age` seconds ago.

        Raises:
            schemas.errors.ModelNotFound: there is no such endpoint, or it has no experiment.
        """
        made, view = self._kept.get(endpoint, (0.0, b""))
        if time.monotonic() - made >= max_age or endpoint not in self._service.catalog.cards:
            view = _encoded(self._service, endpoint)
            self._kept[endpoint] = time.monotonic(), view
        return view


def _encoded(service: Service, endpoint: str) -> bytes:
    """The JSON of an endpoint's experiment.

    Raises:
        schemas.errors.ModelNotFound: there is no such endpoint, or it has no experiment.
    """
    service.refresh()
    if endpoint not in service.catalog.cards:
        raise ModelNotFound(f"Endpoint with name '{endpoint}' does not exist.")
    report = service.ramps.full_report(endpoint)
    deployed = service.deployed(endpoint)
    view = ExperimentView(
        report,
        {metric.name: MetricView(metric.better, metric.kind) for metric in metrics_of(deployed)},
        deployed.experiment.margin,
        deployed.experiment.ramp,
        service.timeline.of(endpoint),
        service.changes.log.of(endpoint),
    )
    return msgspec.json.encode(view)
