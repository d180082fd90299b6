"""How an upstream is reached: one HTTP/1.1 client, small enough to read, behind one narrow interface.

Not a general client: no redirects, cookies, proxies, HTTP/2 or content encodings. `Transport.exchange` sends an
`Outbound` and returns a `Response`; `backends.transport.face` puts the same sockets under `httpx.AsyncClient`. Why it
exists at all: docs/decisions, "A transport of our own".
"""

from backends.transport.client import Response, Transport, split_url
from backends.transport.limits import TransportLimits

__all__ = ["Response", "Transport", "TransportLimits", "split_url"]
