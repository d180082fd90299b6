"""The clients for upstream servers: pooled connections, deadlines and streams.

`Transport` is direct: HTTP/1.1 over a socket of its own, and nothing else. `GeneralTransport` goes through httpx, for
proxies, HTTP/2, Unix sockets and redirects. Both have one method, `exchange`, which sends an `Outbound` and returns a
`Response` once its head has arrived. Why there are two: docs/decisions, "A transport of our own".
"""

from backends.transport.client import Exchanger, Transport
from backends.transport.limits import TransportLimits
from backends.transport.proxies import check_proxy, environment_proxy
from backends.transport.response import Response
from backends.transport.url import check_headers, split_url

__all__ = [
    "Exchanger",
    "Response",
    "Transport",
    "TransportLimits",
    "check_headers",
    "check_proxy",
    "environment_proxy",
    "split_url",
]
