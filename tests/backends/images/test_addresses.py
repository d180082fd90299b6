"""The allow-lists of URLs and addresses, against spellings that are known to bypass such checks."""

from __future__ import annotations

import pytest

from backends.images.addresses import Target, allowed_address, allowed_target
from backends.images.options import ImageOptions

OPTIONS = ImageOptions(hosts=("pics.example", "other.example:8080", "[2001:db8::1]:81", "127.0.0.1"))


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://pics.example/a.png", Target("http", "pics.example", 80, "/a.png")),
        ("https://pics.example", Target("https", "pics.example", 443, "/")),
        ("HTTPS://PICS.Example:443/a?b=c#d", Target("https", "pics.example", 443, "/a?b=c")),
        ("http://other.example:8080/a", Target("http", "other.example", 8080, "/a")),
        ("http://[2001:db8::1]:81/a", Target("http", "2001:db8::1", 81, "/a")),
    ],
)
def test_a_listed_url_is_allowed(url: str, target: Target) -> None:
    assert allowed_target(url, OPTIONS) == target


FORBIDDEN_URLS = [
    "http://evil.example/a.png",
    "http://pics.example.evil.example/",
    "http://evilpics.example/",
    "http://pics.example:81/",
    "http://pics.example:22/",
    "http://other.example/",
    "http://user@pics.example/",
    "http://user:word@pics.example/",
    "http://pics.example@evil.example/",
    "http://evil.example#@pics.example/",
    "http://evil.example\\@pics.example/",
    "http://pics.example\\.evil.example/",
    "http://pics.example\t.evil.example/",
    "http://pics.example/a b",
    "http://pics.example/\r\nX: y",
    "http://pics.example:80:81/",
    "http://pics.example:x/",
    "http://pics.example./",
    "http://pics。example/",
    "http://[pics.example/",
    "http:///a",
    "http:pics.example",
    "//pics.example/a",
    "file://pics.example/etc/passwd",
    "ftp://pics.example/a",
    "gopher://pics.example/a",
    "javascript:alert(1)",
    "",
    "http://localhost/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://169.254.169.254/latest/meta-data/",
]


@pytest.mark.parametrize("url", FORBIDDEN_URLS)
def test_any_other_url_is_refused(url: str) -> None:
    assert allowed_target(url, OPTIONS) is None


@pytest.mark.parametrize("url", ["http://a.example/", "https://127.0.0.1/", "http://localhost/"])
def test_no_host_is_allowed_by_default(url: str) -> None:
    assert allowed_target(url, ImageOptions()) is None


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert allowed_address(address, ImageOptions())


FORBIDDEN_ADDRESSES = [
    *("127.0.0.1", "127.1.2.3", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
    *("100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:1::1"),
    *("localhost", ""),
]


@pytest.mark.parametrize("address", FORBIDDEN_ADDRESSES)
def test_other_addresses_are_refused(address: str) -> None:
    assert not allowed_address(address, ImageOptions())


def test_addresses_in_configured_networks_are_allowed() -> None:
    options = ImageOptions(networks=("10.0.0.0/8", "fd00::/8"))
    assert allowed_address("10.1.2.3", options)
    assert allowed_address("::ffff:10.1.2.3", options)
    assert allowed_address("fd12::1", options)
    assert not allowed_address("127.0.0.1", options)
