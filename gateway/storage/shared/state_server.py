"""The state server: a server of Valkey or Redis by which several gateways agree.

Strategy: losing it fails no request. Whoever asks waits for `timeout` at most, once; from then on every call fails at
once (`ServerAway`), until a probe in the background has had an answer again. Callers go on with what they know.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha1
from typing import TYPE_CHECKING, Any

import structlog

from gateway.config import ConfigError, StateSection

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub

log = structlog.get_logger()

_PROBE_INTERVAL = 1.0
"""Seconds between two looks whether the server is back."""
_MOST_CONNECTIONS = 32
_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis": "redis", "rediss": "rediss", "unix": "unix"}
_DEAD_AFTER = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
"""A machine that is gone ends a connection that only listens, after 11 s."""


class ServerAway(OSError):
    """The state server does not answer, or refuses."""


class Script:
    """A Lua script, which the server runs as one step."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = sha1(text.encode(), usedforsecurity=False).hexdigest()


class StateServer:
    """One worker's connections to the state server. None is made before the first call.

    Args:
        settings: where it is.

    Raises:
        ConfigError: a variable is not set, the URL is of another kind, or redis-py is not installed.
    """

    def __init__(self, settings: StateSection) -> None:
        if (lacking := settings.lacks_package) is not None:
            raise ConfigError(lacking)
        from redis import asyncio as redis
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError
        from redis.retry import Retry

        url, password = server_url(settings)
        options: dict[str, Any] = {
            "socket_connect_timeout": settings.timeout,
            # `run` has the timeout: redis-py's is `asyncio.wait_for`, which may lose a cancellation on Python 3.11.
            "socket_timeout": None,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        if password is not None:
            options["password"] = password
        if not url.startswith("unix:"):
            numbers = {getattr(socket, name): value for name, value in _DEAD_AFTER.items() if hasattr(socket, name)}
            options |= {"socket_keepalive": True, "socket_keepalive_options": numbers}
        try:
            pool = redis.BlockingConnectionPool.from_url(
                url, max_connections=_MOST_CONNECTIONS, timeout=settings.timeout, **options
            )
            self._redis = redis.Redis.from_pool(pool)
            # One that listens hears nothing for hours.
            self._listening: Any = redis.Redis.from_url(url, **options)
        except ValueError as error:
            raise ConfigError(f"the URL in the environment variable {settings.url_env} is wrong: {error}") from None
        self._failures = (RedisError, OSError, TimeoutError)
        self._timeout = settings.timeout
        self._prefix = settings.prefix
        self._probing: asyncio.Task[None] | None = None

    @property
    def is_away(self) -> bool:
        """Whether it has not answered of late."""
        return self._probing is not None

    def key(self, *parts: str) -> str:
        """A name on the server."""
        return ":".join((self._prefix, *parts))

    async def run(self, call: Callable[[Any], Awaitable[Any]], seconds: float | None = None) -> Any:
        """The result of commands.

        Args:
            call: gives them to a client of redis-py.
            seconds: how long they may take; None: the configured time.

        Raises:
            ServerAway: the server has not answered in this time, or refuses.
        """
        if self._probing is not None:
            raise ServerAway("the state server is away")
        try:
            # Also over the wait for a connection, and for all of several commands.
            async with asyncio.timeout(seconds or self._timeout):
                return await call(self._redis)
        except self._failures as error:
            why = str(error) or type(error).__name__
            self._lose(why)
            raise ServerAway(f"the state server does not answer: {why}") from None

    async def evaluate(self, script: Script, keys: Sequence[str], values: Sequence[str | bytes | float]) -> Any:
        """What a script returns.

        Raises:
            ServerAway: the server has not answered in time, or refuses.
        """
        from redis.exceptions import NoScriptError

        async def call(redis: Any) -> Any:
            try:
                return await redis.evalsha(script.digest, len(keys), *keys, *values)
            except NoScriptError:  # the first call, or the server has been started anew
                return await redis.eval(script.text, len(keys), *keys, *values)

        return await self.run(call)

    async def pop(self, name: str, seconds: float) -> bytes | None:
        """The first element of a list, which is waited for; None: there is none after so many seconds.

        Raises:
            ServerAway: the server cannot be reached.
        """
        if self._probing is not None:
            raise ServerAway("the state server is away")
        try:
            async with asyncio.timeout(seconds):
                found = await self._listening.blpop([name], timeout=0)
        except TimeoutError:
            return None
        except self._failures as error:
            raise ServerAway(str(error) or type(error).__name__) from None
        element: bytes = found[1]
        return element

    @asynccontextmanager
    async def listen(self, channels: Sequence[str]) -> AsyncIterator[PubSub]:
        """Subscribe to channels.

        Raises:
            ServerAway: the server cannot be reached.
        """
        pubsub = self._listening.pubsub(ignore_subscribe_messages=True)
        try:
            try:
                async with asyncio.timeout(10 * self._timeout):
                    await pubsub.subscribe(*channels)
                yield pubsub
            except self._failures as error:
                raise ServerAway(str(error) or type(error).__name__) from None
        finally:
            with suppress(*self._failures):
                await pubsub.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        if self._probing is not None:
            self._probing.cancel()
            with suppress(asyncio.CancelledError):
                await self._probing
        for each in (self._redis, self._listening):
            with suppress(*self._failures):
                await each.aclose()

    def _lose(self, why: str) -> None:
        if self._probing is None:
            log.error("state_server.lost", why=why)
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        """Return once the server answers."""
        while True:
            await asyncio.sleep(_PROBE_INTERVAL)
            with suppress(*self._failures):
                # Connections of before are of no use, and one of them might have an old answer in it. Even to close
                # one may fail: TLS waits for the other side.
                await self._redis.connection_pool.disconnect(inuse_connections=False)
                async with asyncio.timeout(self._timeout):
                    await self._redis.ping()
                break
        self._probing = None
        log.info("state_server.found")


def server_url(settings: StateSection) -> tuple[str, str | None]:
    """The server's URL as redis-py takes it, and the password where it is apart.

    Raises:
        ConfigError: a variable is not set, or the URL is of another kind.
    """
    if not (url := os.environ.get(settings.url_env, "").strip()):
        raise ConfigError(f"state: the environment variable {settings.url_env}, named by `url_env`, is not set")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        # Without repeating it: there may be a password in it.
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise ConfigError(f"state: the URL in {settings.url_env} begins with none of {known}")
    if settings.password_env is None:
        return f"{_SCHEMES[scheme]}://{rest}", None
    if not (password := os.environ.get(settings.password_env, "")):
        raise ConfigError(f"state: the environment variable {settings.password_env} is not set")
    return f"{_SCHEMES[scheme]}://{rest}", password
