"""Changes that an admin makes while the server runs: of endpoints, of figures, and of ramps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from backends.base import Health
from gateway.deployment.change_log import ChangeLog
from gateway.deployment.deployments import Deployment
from gateway.deployment.state_file import LiveDeployments
from gateway.experiments.experiments import Experiments
from gateway.shared import Shared
from schemas.catalog import Change

log = structlog.get_logger()


class Changes:
    """The changes of one worker, which hold for all. They return once all workers of this gateway serve them, and the
    other gateways with the same state server, as far as these answer within a moment.

    Attributes:
        log: of what was changed, for people.

    Args:
        live: what is deployed.
        experiments: those of the endpoints.
        log: of what was changed.
        refresh: has this worker serve what is deployed by now.
        shared: with other gateways; None: there are none.
    """

    def __init__(
        self,
        live: LiveDeployments,
        experiments: Experiments,
        log: ChangeLog,
        refresh: Callable[[], None],
        shared: Shared | None,
    ) -> None:
        self._live, self._experiments, self._refresh, self._shared = live, experiments, refresh, shared
        self.log = log

    async def manage(
        self, change: Change, by: str, health: Mapping[str, Health], generates: Mapping[str, bool]
    ) -> None:
        """Change what is deployed.

        Args:
            change: the requested change.
            by: the name of the key that asked.
            health: of all backends, by name.
            generates: of `deployments.generating`.

        Raises:
            schemas.errors.RequestError: the change is refused.
        """
        before = self._live.deployments.get(change.endpoint)
        await self._live.change(change, health, generates)
        await self._changed(change.endpoint, change.action, by, before)
        log.info("endpoint.changed", model=change.endpoint, action=change.action, key_name=by or None)

    async def reset(self, endpoint: str, by: str = "") -> None:
        """Have the figures of an endpoint's experiment begin anew.

        Raises:
            schemas.errors.RequestError: the endpoint has no experiment, or there is no state file.
        """
        self._experiments.of(endpoint)
        await self._live.reset(endpoint)
        await self._changed(endpoint, "reset", by, self._live.deployments.get(endpoint))
        log.info("experiment.reset", model=endpoint)

    async def restart_ramp(self, endpoint: str, by: str = "") -> None:
        """Have an endpoint's ramp begin anew, and the figures of its experiment.

        Raises:
            schemas.errors.RequestError: the endpoint has no ramp or is being updated, or there is no state file.
        """
        before = self._live.deployments.get(endpoint)
        await self._live.restart_ramp(endpoint)
        await self._changed(endpoint, "restart_ramp", by, before)
        log.info("ramp.restarted", model=endpoint)

    async def _changed(self, endpoint: str, action: str, by: str, before: Deployment | None) -> None:
        self._refresh()
        self.log.note(endpoint, action, by, before, self._live.deployments.get(endpoint))
        if self._shared is not None:
            await self._shared.confirm()
