"""The documents agree with the code: configuration keys and their defaults, metrics, examples, links."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.images import ImageOptions
from backends.native.demo import WEIGHTS
from backends.native.options import NativeOptions
from backends.remote.options import RemoteOptions
from gateway import config
from gateway.check import read_file
from gateway.observability.metrics import Metrics

ROOT = Path(__file__).parent.parent
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))}
CONFIGURATION = PAGES["docs/configuration.md"]

TABLES: dict[str, type[msgspec.Struct]] = {
    "## `[server]`": config.ServerSection,
    "## `[server.grpc]`": config.Grpc,
    "## `[usage]`": config.UsageSection,
    "## `[server.limits]`": config.Limits,
    "## `[telemetry]`": config.Telemetry,
    "## `[endpoints.NAME]`": config.Endpoint,
    "Of `served_entities`:": config.ServedEntity,
    "Of `experiment`:": config.Experiment,
    '### `kind = "native"`': NativeOptions,
    "### Remote kinds": RemoteOptions,
}
ELSEWHERE = {("## `[server]`", "limits")}
WORDS = {"the bundled one": str(WEIGHTS)}


@pytest.mark.parametrize("heading", TABLES)
def test_every_key_is_listed_with_its_default(heading: str) -> None:
    listed = {name: value for names, value in rows(heading) for name in re.findall(r"`(\w+)`", names)}
    wanted = dict(defaults(TABLES[heading]))
    assert set(listed) == {name for name in wanted if (heading, name) not in ELSEWHERE}
    assert {name: plain(value) for name, value in listed.items() if value} == {
        name: wanted[name] for name, value in listed.items() if value
    }
    assert [name for name, value in listed.items() if not value and isinstance(wanted[name], int | float | str)] == []


def test_the_limits_of_images_are_listed_with_their_defaults() -> None:
    block = re.search(r"```toml\n[^`]*\[backends.local.images\]\n(.*?)```", PAGES["docs/images.md"], re.DOTALL)
    assert block is not None
    listed = tomllib.loads(block[1])
    assert listed == {name: value for name, value in defaults(ImageOptions) if value is not None}
    assert "# folder = " in block[1]


def test_every_metric_is_listed() -> None:
    rendered = set(re.findall(r"^# TYPE ([\w:]+)", Metrics({}).render().decode(), re.MULTILINE))
    listed = {name for names, _ in rows("## Metrics") for name in re.findall(r"`([\w:]+)`", names)}
    assert listed == rendered


BLOCKS = [
    pytest.param(block, id=f"{name}-{number}")
    for name, text in PAGES.items()
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", text, re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_check_passes_a_configuration(block: str, tmp_path: Path) -> None:
    """Backends and endpoints that it leaves to the reader are added."""
    read = tomllib.loads(block)
    endpoints, known = read.get("endpoints", {}), read.get("backends", {})
    named = {arm["backend"] for endpoint in endpoints.values() for arm in endpoint.get("served_entities", ())}
    lacking = named - known.keys() or ({"any"} if not known else set())
    file = tmp_path / "gateway.toml"
    file.write_text(block + "".join(f'\n[backends.{name}]\nkind = "scripted"\n' for name in lacking))
    config = read_file(file, offline=True)
    # Natively served models are read by `check` only on their machine.
    assert config.backends.keys() == {*known, *lacking}


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_exist(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:|data:)([^)#]+)", PAGES[page]):
        assert (ROOT / page).parent.joinpath(target).exists(), target


# Sentences of the first column, or of the second one after a column of statuses. `...` stands for what varies.
CELLS = re.findall(
    r"^\| (?:\d+ \| )?([^|]*`[^|]* [^|]*`[^|]*) \|", PAGES["docs/guides/troubleshooting.md"], re.MULTILINE
)
PARTS = [part.strip(" .,;:?'") for cell in CELLS for part in re.split(r"\.\.\.|\(\d+\)|[`;]", cell)]


def test_messages_of_troubleshooting_are_those_of_the_code() -> None:
    code = "".join(path.read_text() for name in ("gateway", "backends") for path in ROOT.glob(f"{name}/**/*.py"))
    code = re.sub(r"`|\\|\"\s*f?\"|\{[^{}]*\}", "", code)
    wanted = [part for part in PARTS if part.count(" ") > 1]
    assert len(wanted) > 15
    assert [part for part in wanted if part not in code] == []


@pytest.mark.parametrize("page", PAGES)
def test_modules_named_in_commands_exist(page: str) -> None:
    for name in re.findall(r"python -m ((?:backends|benchmarks|tests|tools|gateway)[\w.]*)", PAGES[page]):
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


def rows(heading: str) -> Iterator[tuple[str, str]]:
    """The first and second cell of each row of the table under `heading`."""
    _, _, after = CONFIGURATION.partition(f"\n{heading}\n")
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table is not None, heading
    for line in table[0].splitlines()[2:]:
        first, second, *_ = (cell.strip() for cell in line.strip("|").split(" |"))
        yield first, second


def plain(cell: str) -> Any:
    return WORDS[cell] if cell in WORDS else tomllib.loads(f"value = {cell.strip('`')}")["value"]


def defaults(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """The name and the default of each field, as TOML values; None if there is no default."""
    for field in msgspec.structs.fields(struct):
        value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        value = None if value is msgspec.NODEFAULT else msgspec.to_builtins(value)
        yield field.name, list(value) if isinstance(value, tuple) else value
