"""The proxy that the environment names for a URL: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`.

As in curl, lower-case names go first. As in Go's client, the machine itself is never reached through a proxy, and
`NO_PROXY` may hold networks.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

_PORTS = {"http": 80, "https": 443}


def check_proxy(url: str) -> str:
    """The URL of a proxy.

    Raises:
        ValueError: it is none; the text does not repeat it, since it may hold a password.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https", "socks5", "socks5h") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("a proxy is a URL: http://host:port, https://host:port or socks5://host:port")
    return url


def environment_proxy(url: SplitResult, environment: Mapping[str, str]) -> str:
    """The proxy for an upstream's URL; "" if it is called directly."""
    host, port = (url.hostname or "").lower(), url.port or _PORTS[url.scheme]
    proxy = _value(f"{url.scheme}_proxy", environment) or _value("all_proxy", environment)
    if not proxy or _is_loopback(host) or _is_exempt(host, port, _value("no_proxy", environment)):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _value(name: str, environment: Mapping[str, str]) -> str:
    # A CGI program finds a client's header `Proxy` in HTTP_PROXY (httpoxy, CVE-2016-5385).
    upper = "" if name == "http_proxy" and "REQUEST_METHOD" in environment else environment.get(name.upper(), "")
    return (environment.get(name) or upper).strip()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_exempt(host: str, port: int, exempt: str) -> bool:
    for entry in exempt.lower().replace(",", " ").split():
        if entry == "*" or _is_in_network(host, entry):
            return True
        name, _, only = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
        name = name.removeprefix("*").removeprefix(".").strip("[]")
        if (not only or only == str(port)) and (host == name or host.endswith("." + name)):
            return True
    return False


def _is_in_network(host: str, entry: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:  # one of them is a name
        return False
