"""Who may ask, who may change what is served, and in which header a key may come."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.keys import Keys, given_key, keys_from
from gateway.access.keys_file import keys_file, new_key, read_keys
from gateway.config import ConfigError
from schemas.errors import Forbidden, GatewayError, Unauthorized

BEARER, API_KEY = {"authorization": "Bearer secret"}, {"x-api-key": "secret"}


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        (BEARER, "secret"),
        (API_KEY, "secret"),
        ({"authorization": "bearer  secret "}, "secret"),
        ({"authorization": "Basic abc", "x-api-key": "secret"}, "secret"),
        ({"api-key": "secret"}, "secret"),
        ({"x-goog-api-key": "secret"}, "secret"),
        ({"authorization": "Basic abc"}, ""),
        ({}, ""),
    ],
)
def test_a_key_comes_as_bearer_or_as_x_api_key(headers: dict[str, str], key: str) -> None:
    assert given_key(headers) == key


def test_without_keys_everybody_may_ask() -> None:
    keys = Keys()
    assert not keys.required
    keys.check({})


@pytest.mark.parametrize("headers", [BEARER, API_KEY, {"authorization": "Bearer root"}])
def test_a_known_key_may_ask_and_so_may_an_admin_key(headers: dict[str, str]) -> None:
    keys = Keys(["other", "secret"], ["root"])
    assert keys.required
    keys.check(headers)


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}, {"authorization": "secret"}])
def test_an_unknown_key_may_not_ask(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized):
        Keys(["secret"]).check(headers)


CHANGES: list[tuple[Keys, dict[str, str], type[GatewayError] | None]] = [
    (Keys(["secret"], ["root"]), {"x-api-key": "root"}, None),
    (Keys([], ["root"]), {"x-api-key": "root"}, None),
    (Keys(["secret"], ["root"]), API_KEY, Forbidden),
    (Keys(["secret"], ["root"]), {"x-api-key": "wrong"}, Unauthorized),
    (Keys(["secret"], ["root"]), {}, Unauthorized),
    (Keys([], ["root"]), {"x-api-key": "wrong"}, Forbidden),
    (Keys(["secret"]), API_KEY, Forbidden),
    (Keys(), {}, Forbidden),
]


@pytest.mark.parametrize(("keys", "headers", "error"), CHANGES)
def test_only_an_admin_key_may_change_endpoints(
    keys: Keys, headers: dict[str, str], error: type[GatewayError] | None
) -> None:
    if error is None:
        keys.check_admin(headers)
    else:
        with pytest.raises(error):
            keys.check_admin(headers)


def test_keys_come_from_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEYS", " a, ,b ,")
    assert keys_from("THE_KEYS") == ("a", "b")
    assert keys_from(None) == ()
    for value in ("", " , "):
        monkeypatch.setenv("THE_KEYS", value)
        with pytest.raises(ConfigError, match="THE_KEYS"):
            keys_from("THE_KEYS")


def test_an_expiry_without_a_zone_is_refused_when_the_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    new_key(keys_file(file), "team")
    file.write_text(file.read_text().replace('"expires": null', '"expires": "2030-01-01T00:00:00"'))
    with pytest.raises(ConfigError, match="timezone"):
        read_keys(keys_file(file))
