"""The allow-lists against SSRF (server-side request forgery): which URLs may be fetched, and which addresses reached.

No I/O. `backends.images.fetch` applies both checks to every redirect.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from backends.images.options import ImageOptions

_PORTS = {"http": 80, "https": 443}
# Printable ASCII without space and backslash: URL parsers disagree about all others (Orange Tsai, "A New Era of SSRF",
# 2017), and a URL that the check reads differently from the client is a way around the check.
_UNAMBIGUOUS = re.compile(r"[!-\[\]-~]+")
_NAT64 = ip_network("64:ff9b::/96")  # RFC 6052: holds an IPv4 address, which may be private


class Target(NamedTuple):
    """A URL that passed the check, as its parts: it is not parsed again, so nothing can read it differently."""

    scheme: str
    host: str
    port: int
    path: str


def allowed_target(url: str, options: ImageOptions) -> Target | None:
    """The target of `url` if its host and port are in `options.hosts`, else None."""
    if not _UNAMBIGUOUS.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    # A port that is no number, or brackets that hold no IPv6 address.
    except ValueError:
        return None
    if scheme not in _PORTS or not host or "@" in parts.netloc:  # "a@b": parsers disagree about which is the host
        return None
    # IPv6 literals are listed in brackets, as in URLs (RFC 3986, 3.2.2). `urlsplit` has lowered the host's case.
    name = f"[{host}]" if ":" in host else host
    default_port = port in (None, _PORTS[scheme])
    listed = {each.lower() for each in options.hosts}
    # A bare name allows the scheme's default port alone: other ports may be internal services of the same host.
    if f"{name}:{port or _PORTS[scheme]}" not in listed and not (default_port and name in listed):
        return None
    # The fragment is dropped: it is never sent (RFC 9110, 7.1).
    query = f"?{parts.query}" if parts.query else ""
    return Target(scheme, host, port or _PORTS[scheme], (parts.path or "/") + query)


def allowed_address(address: str, options: ImageOptions) -> bool:
    """Whether an IP address may be connected to: it is public, or in one of `options.networks`."""
    try:
        ip = ip_address(address)
    except ValueError:  # an IPv6 address with a scope is link-local
        return False
    # ::ffff:a.b.c.d reaches the IPv4 address (RFC 4291, 2.5.5.2), so the IPv4 rules apply to it.
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    # The operator's networks come first: they exist to permit what the rules below refuse.
    if any(ip in ip_network(network) for network in options.networks):
        return True
    # 6to4 (2002::/16, RFC 3056), Teredo (2001::/32, RFC 4380), site-local (fec0::/10, deprecated by RFC 3879), NAT64.
    if isinstance(ip, IPv6Address) and (ip.sixtofour or ip.teredo or ip.is_site_local or ip in _NAT64):
        return False  # tunnels and translations, which may end at a private IPv4 address
    # Some multicast addresses count as global.
    return ip.is_global and not ip.is_multicast
