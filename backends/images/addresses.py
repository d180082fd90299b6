"""Which URLs pictures may be fetched from, and which addresses may be connected to for them. No I/O."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from backends.images.options import ImageOptions

_PORTS = {"http": 80, "https": 443}
_PLAIN = re.compile(r"[!-\[\]-~]+")  # printable ASCII but space and backslash, which parsers disagree about
_TRANSLATED = ip_network("64:ff9b::/96")  # NAT64: an IPv4 address in disguise


class Target(NamedTuple):
    """A URL taken apart, once and for all."""

    scheme: str
    host: str
    port: int
    path: str


def allowed_target(url: str, options: ImageOptions) -> Target | None:
    """Where `url` leads, if its host is listed."""
    if not _PLAIN.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    except ValueError:
        return None
    if scheme not in _PORTS or not host or "@" in parts.netloc:
        return None
    name = f"[{host}]" if ":" in host else host
    usual = port in (None, _PORTS[scheme])
    listed = {each.lower() for each in options.hosts}
    if f"{name}:{port or _PORTS[scheme]}" not in listed and not (usual and name in listed):
        return None
    query = f"?{parts.query}" if parts.query else ""
    return Target(scheme, host, port or _PORTS[scheme], (parts.path or "/") + query)


def allowed_address(address: str, options: ImageOptions) -> bool:
    """Whether an IP address is a public one, or of the configured networks."""
    try:
        ip = ip_address(address)
    except ValueError:  # an IPv6 address with a scope, which is a local one
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if any(ip in ip_network(network) for network in options.networks):
        return True
    if isinstance(ip, IPv6Address) and (ip.sixtofour or ip.teredo or ip.is_site_local or ip in _TRANSLATED):
        return False
    return ip.is_global and not ip.is_multicast
