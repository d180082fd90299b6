"""What the native backend can be told in a configuration."""

from __future__ import annotations

from typing import Literal

import msgspec

from backends.images import ImageOptions
from backends.native.demo import WEIGHTS
from backends.native.protocol.engine_options import EngineOptions


class NativeOptions(EngineOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine's options, and how to reach an engine.

    Attributes:
        model: folder of the checkpoint; the bundled model's by default.
        engine: a process of its own, or a thread of this one.
        socket: Unix socket of an engine that somebody else runs; without it the backend runs its own.
        images: which pictures are taken, and from where.
        heartbeat: seconds between signs of life that the engine is asked for.
        hung_after: seconds without one after which the engine is killed; while it loads, ten times as many.
        patience: seconds that requests wait for the engine that is started in its place.
    """

    model: str = str(WEIGHTS)
    engine: Literal["process", "inprocess"] = "process"
    socket: str | None = None
    images: ImageOptions = ImageOptions()
    heartbeat: float = 1.0
    hung_after: float = 30.0
    patience: float = 30.0

    @property
    def engine_options(self) -> EngineOptions:
        """The engine's part."""
        fields = msgspec.structs.fields(EngineOptions)
        return EngineOptions(**{field.name: getattr(self, field.name) for field in fields})
