"""The commands `gateway keys`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.access.keys_file import keys_file, read_keys
from gateway.cli import main
from gateway.config import Limit


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["keys", *words])
    return result.exit_code, result.output


def test_a_key_is_made_listed_and_revoked(tmp_path: Path) -> None:
    file = str(tmp_path / "keys.json")
    limits = ("--limit", "tokens=5000/day", "--limit", "concurrent=2", "--limit", "cost=0.5/month")
    code, key = run("new", "team", "--file", file, "--endpoint", "chat", "--expires", "30d", *limits)
    assert (code, key[:3]) == (0, "il-")
    (made,) = read_keys(keys_file(Path(file)))
    assert made.limits == (Limit(tokens=5000, window="day"), Limit(concurrent=2), Limit(cost=0.5, window="month"))
    code, listed = run("list", "--file", file)
    assert code == 0
    assert "team" in listed
    assert "tokens=5000/day  concurrent=2  cost=0.5/month  until 20" in listed
    assert key.strip() not in listed
    assert run("revoke", "team", "--file", file) == (0, "")
    assert run("revoke", "team", "--file", file) == (1, "Error: There is no key 'team'.\n")
    assert run("list", "--file", file) == (0, "")


@pytest.mark.parametrize(
    ("expires", "listed"),
    [
        ("2030-01-31T00:00:00Z", "2030-01-31 00:00 UTC"),
        ("2030-01-31T00:00:00+02:00", "2030-01-30 22:00 UTC"),
        ("9999-12-31T23:59:00-02:00", "9999-12-31 23:59 UTC-02:00"),  # which UTC has no year for
    ],
)
def test_an_expiry_is_listed_in_utc(tmp_path: Path, expires: str, listed: str) -> None:
    file = str(tmp_path / "keys.json")
    assert run("new", "team", "--file", file, "--expires", expires)[0] == 0
    assert f"  until {listed}\n" in run("list", "--file", file)[1]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--limit", "requests=60"), "is no limit"),
        (("--limit", "requests=0/minute"), "Expected `int` >= 1"),
        (("--limit", "cost=1.2.3/day"), "is no limit"),
        (("--limit", "requests=1.5/minute"), "is no limit"),
        (("--limit", "tokens=./day"), "is no limit"),
        (("--limit", "tokens=9999999999999999999999/day"), "is no limit"),
        (("--limit", f"concurrent={'9' * 5000}"), "is no limit"),
        (("--expires", "99999999w"), "is too long"),
        (("--expires", f"{'9' * 5000}w"), "is too long"),
        (("--expires", "soon"), "Invalid RFC3339"),
        (("--expires", "2030-01-01T00:00:00"), "no time zone"),
    ],
)
def test_a_wrong_option_is_explained(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    code, output = run("new", "team", "--file", str(tmp_path / "keys.json"), *words)
    assert (code, why in output) == (1, True), output
    assert not (tmp_path / "keys.json").exists()
