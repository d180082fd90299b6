"""A filter with its limits: one that raises or hangs harms nothing else.

A call runs in one of the filter's few threads and has a time limit. A thread whose call has passed it is lost until the
call returns, if ever; once all are lost, calls fail at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType

import structlog

from gateway.config import FilterSettings
from gateway.filters.base import Edit, Filter, Refused, Source
from schemas.errors import InvalidRequest, Overloaded

log = structlog.get_logger()

_THREADS = 4


class GuardedFilter:
    """A configured filter.

    Args:
        name: its section's.
        inner: what does the work.
        settings: what becomes of a failure, and the time limit.
    """

    def __init__(self, name: str, inner: Filter, settings: FilterSettings) -> None:
        self.name = name
        self.window = inner.window
        self._inner = inner
        self._settings = settings
        # Daemons, unlike those of `asyncio.to_thread`: a call that hangs must not keep the process from ending.
        self._free = threading.BoundedSemaphore(_THREADS)

    async def edits(self, text: str, source: Source) -> list[Edit]:
        """The changes of a text; [] if the filter fails and texts pass then.

        Raises:
            schemas.errors.InvalidRequest: the filter refuses the text.
            schemas.errors.Overloaded: it has failed, and nothing passes then.
        """
        try:
            async with asyncio.timeout(self._settings.timeout):
                found = await self._call(text, source)
            _check(found, text)
        except Refused as refused:
            raise InvalidRequest(str(refused), code="content_filter") from None
        except Exception as error:
            kind = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
            log.warning("filter.failed", filter=self.name, source=source, error=kind)
            if self._settings.on_failure == "pass":
                return []
            raise Overloaded(f"The filter '{self.name}' has failed.", retry_after=1.0, code="filter_failed") from None
        return found

    async def _call(self, text: str, source: Source) -> list[Edit]:
        if not self._free.acquire(blocking=False):
            raise TimeoutError
        loop = asyncio.get_running_loop()
        done: asyncio.Future[list[Edit]] = loop.create_future()

        def settle(found: list[Edit] | None, error: BaseException | None) -> None:
            if done.done():  # the caller has given up
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(found or [])

        def work() -> None:
            found: list[Edit] | None = None
            failure: BaseException | None = None
            try:
                found = list(self._inner.edits(text, source))
            except BaseException as error:
                failure = error
            finally:
                self._free.release()
            with suppress(RuntimeError):  # the loop has ended meanwhile, and the worker with it
                loop.call_soon_threadsafe(settle, found, failure)

        threading.Thread(target=work, name=f"filter {self.name}", daemon=True).start()
        return await done


NONE: Mapping[str, GuardedFilter] = MappingProxyType({})
"""No filters."""


def _check(edits: list[Edit], text: str) -> None:
    """Pass edits that can be applied.

    Raises:
        ValueError: they are out of order, or out of the text.
    """
    at = 0
    for edit in edits:
        if not at <= edit.start <= edit.stop <= len(text):
            raise ValueError("a filter's edits are out of order")
        at = edit.stop
