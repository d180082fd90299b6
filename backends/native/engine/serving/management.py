"""An engine that can sleep and wake, and whose LoRA adapters can be loaded and unloaded while it serves.

It stands between the serving loop and the engine and passes all else on. Sleeping, level 1: the KV cache is freed;
level 2: the weights, too, which are read anew at the wake-up. Sequences in flight end first; new ones are refused
meanwhile. What changes is announced to all workers by another `Ready`.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from backends.native.engine.devices import release_memory
from backends.native.engine.errors import LoadError
from backends.native.engine.factory import load_engine
from backends.native.engine.steps import Manageable
from backends.native.machine import resident_memory, return_freed_memory
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import (
    Cached,
    FromEngine,
    Manage,
    Managed,
    Output,
    Ping,
    Pong,
    Ready,
    Step,
    Submit,
    ToEngine,
)

log = structlog.get_logger()

_ASLEEP = "the model is asleep"


Loaded = tuple[Manageable, Ready]
"""An engine, and what announces it."""


class ManagedEngine:
    """Loads and manages an engine. Implements `steps.Steps`.

    Args:
        options: what to load and how to run it.
        announce: sends a message to all workers, and to those that connect later.
        loaded: the engine, if it has been loaded already.

    Raises:
        LoadError: the model cannot be loaded or run with these options.
    """

    def __init__(
        self, options: EngineOptions, announce: Callable[[FromEngine], None], loaded: Loaded | None = None
    ) -> None:
        self._options = options
        self._announce = announce
        self._wanted = 0  # the level of sleep that was asked for
        self._outputs: defaultdict[int, list[Output]] = defaultdict(list)
        self._engine: Manageable | None
        self._engine, self.ready = loaded or load_engine(options, announce)

    @property
    def busy(self) -> bool:
        """Whether `step` would do anything."""
        return (
            bool(self._outputs) or self._wanted > self.ready.asleep or (self._engine is not None and self._engine.busy)
        )

    def handle(self, connection: int, message: ToEngine) -> Pong | Cached | Managed | None:
        """Handle one message of a worker; return the answer to a `Ping` or a `Manage`."""
        match message:
            case Manage():
                return self._manage(message)
            case Submit() if self._wanted:
                self._outputs[connection].append(Output(message.seq, error=_ASLEEP, overloaded=True))
                return None
            case Ping() if self._engine is None:
                return Pong(message.token, resident_bytes=resident_memory())
        return self._engine.handle(connection, message) if self._engine is not None else None

    def disconnect(self, connection: int) -> None:
        """Free every sequence of a connection that was lost."""
        self._outputs.pop(connection, None)
        if self._engine is not None:
            self._engine.disconnect(connection)

    def step(self) -> dict[int, Step]:
        """Run one step, or fall asleep if nothing is left to run; return the outputs by connection."""
        refused, self._outputs = self._outputs, defaultdict(list)
        made = self._engine.step() if self._engine is not None and self._engine.busy else {}
        for connection, outputs in refused.items():
            step = made.get(connection, Step(()))
            made[connection] = replace(step, outputs=(*step.outputs, *outputs))
        if self._wanted > self.ready.asleep and not (self._engine is not None and self._engine.busy):
            self._fall_asleep()
        return made

    def _manage(self, asked: Manage) -> Managed:
        why = None
        try:
            match asked.action:
                case "sleep":
                    if asked.level > 1 and self._options.tensor_parallel > 1:
                        raise LoadError("A model over several devices sleeps at level 1: its weights stay.")
                    self._wanted = max(self._wanted, asked.level)
                case "wake":
                    self._wake()
                case _:
                    self._change_lora_adapters(asked)
        except (LoadError, RuntimeError, ValueError, MemoryError, OSError) as error:
            if self._engine is None and asked.action == "wake":
                raise  # the model cannot be loaded any more: whoever starts engines tries again
            log.warning("engine.not_changed", action=asked.action, name=asked.name, why=str(error))
            why = str(error) if isinstance(error, LoadError) else f"It failed: {type(error).__name__}."
        return Managed(asked.token, why)

    def _fall_asleep(self) -> None:
        before = resident_memory()
        if self._wanted == 1 and self._engine is not None:
            self._engine.sleep()
        else:
            self._engine = None
        gc.collect()  # models have cycles
        release_memory()
        return_freed_memory()
        log.info("engine.slept", level=self._wanted, before_mb=before >> 20, after_mb=resident_memory() >> 20)
        self._describe(replace(self.ready, asleep=self._wanted))

    def _wake(self) -> None:
        was, self._wanted = self.ready.asleep, 0
        if not was:
            return
        if self._engine is None:
            # It announces its progress: workers then let requests wait for the next `Ready`.
            self._engine, ready = load_engine(self._options, self._announce)
        else:
            self._engine.wake()
            ready = replace(self.ready, asleep=0)
        log.info("engine.woken", level=was, resident_mb=resident_memory() >> 20)
        self._describe(ready)

    def _change_lora_adapters(self, asked: Manage) -> None:
        loras = self._engine.loras if self._engine is not None else None
        if loras is None:
            reason = "it is asleep" if self._engine is None else "it makes embeddings or scores"
            raise LoadError(f"This model takes no LoRA adapters now: {reason}.")
        # The options are what the next wake-up loads.
        folders = dict(self._options.lora_adapters)
        if asked.action == "load_lora":
            loras.load(asked.name, asked.path)
            folders[asked.name] = asked.path
        else:
            loras.unload(asked.name)
            loras.drop_unused(self._engine.lora_keys if self._engine is not None else tuple)
            del folders[asked.name]
        self._options = replace(self._options, lora_adapters=folders)
        log.info("engine.lora_changed", action=asked.action, name=asked.name)
        self._describe(replace(self.ready, lora_adapters=tuple(folders)))

    def _describe(self, ready: Ready) -> None:
        self.ready = ready
        self._announce(ready)
