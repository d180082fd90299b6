"""The processes of one reading of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from backends.process import SupervisedProcess
from backends.standby import EngineCommand
from gateway.config import Config


@dataclass(slots=True, eq=False)
class Generation:
    """The processes that serve one reading of the configuration."""

    config: Config
    engines: dict[EngineCommand, SupervisedProcess]
    workers: list[SupervisedProcess]

    @property
    def processes(self) -> list[SupervisedProcess]:
        """All of them."""
        return [*self.engines.values(), *self.workers]
