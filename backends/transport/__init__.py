"""The HTTP/1.1 client for upstream servers: pooled connections, deadlines, streams, and nothing else.

Not a general client: no redirects, cookies, proxies, HTTP/2 or content encodings. `Transport.exchange` sends an
`Outbound` and returns a `Response` once its head has arrived. Why it exists: docs/decisions, "A transport of our own".
"""

from backends.transport.client import Response, Transport, split_url
from backends.transport.limits import TransportLimits

__all__ = ["Response", "Transport", "TransportLimits", "split_url"]
