"""An engine in a thread of this process, with the same messages as the engine process. For tests and examples.

Loading a model sets the number of torch's threads for the whole process.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

import structlog

from backends.native.engine.errors import LoadError
from backends.native.engine.serving.engine_thread import Inbox, serve, stop
from backends.native.engine.serving.management import ManagedEngine
from backends.native.import_lock import with_import_lock
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Failed, FromEngine, ToEngine

log = structlog.get_logger()


class InProcessEngine:
    """Loads and runs a model in a daemon thread.

    Args:
        options: the model, and how to run it.
        deliver: called in the engine's thread with each message, in order: `Loading`, then `Ready` or `Failed`, then
            the answers. It must not block: `queue.SimpleQueue().put`, or a function that passes the message on with
            `loop.call_soon_threadsafe`.
    """

    def __init__(self, options: EngineOptions, deliver: Callable[[FromEngine], None]) -> None:
        self._options = options
        self._deliver = deliver
        self._inbox: Inbox = SimpleQueue()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def send(self, message: ToEngine) -> None:
        """Send a message to the engine. May be called from any thread, and before the engine is ready."""
        # One client, hence one connection: number 0.
        self._inbox.put((0, message))

    def close(self) -> None:
        """Stop after the current step. Idempotent."""
        stop(self._inbox, self._stopping)
        self._thread.join()

    def _run(self) -> None:
        try:
            # transformers imports its modules lazily and swaps functions of torch meanwhile, for all threads.
            engine = with_import_lock(ManagedEngine, self._options, self._deliver)
            self._deliver(engine.ready)
            serve(engine, self._inbox, lambda _, message: self._deliver(message), self._stopping)
        except LoadError as error:
            self._deliver(Failed(str(error)))
        except Exception as error:  # the thread's top: whoever waits for messages must be sent the failure
            log.error("engine.died", error=repr(error))
            self._deliver(Failed(f"the engine died: {type(error).__name__}"))
