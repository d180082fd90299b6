"""The architecture rules that import-linter (pyproject.toml) and ruff do not check."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from adapters.base import Adapter
from schemas import errors

ROOT = Path(__file__).parent.parent
PACKAGES = ("schemas", "adapters", "backends", "gateway")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
ADAPTERS = {point.name: point for point in entry_points(group="gateway.adapters")}

LINES = 400
"""Maximum number of lines of a source file."""
MODULES = 16
"""Maximum number of modules of a folder, `__init__.py` and `__main__.py` among them."""
UNTESTED = {"schemas", "schemas/openai"}
"""Folders without behavior of their own: wire structs, which the adapters' tests cover."""


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_every_adapter_folder_is_registered() -> None:
    folders = {path.parent.name for path in (ROOT / "adapters").glob("*/server.py")}
    assert set(ADAPTERS) == folders


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_complete(name: str) -> None:
    adapter = ADAPTERS[name].load()
    assert isinstance(adapter, Adapter)
    assert adapter.name == name
    for dialect in adapter.dialects.values():
        assert adapter.server(dialect).routes
        assert adapter.client(dialect)


@pytest.mark.parametrize("name", ADAPTERS)
def test_importing_an_adapter_imports_no_io(name: str) -> None:
    heavy = ("asyncio", "httpx", "litestar", "torch", "transformers", "structlog")
    script = f"import sys, {ADAPTERS[name].module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


_SUPERVISOR = """
from gateway.process.imports import quick_imports
with quick_imports():
    import gateway.cli.serve, gateway.check, gateway.process.startup, gateway.process.supervisor
from gateway.config import Config, Endpoint, ServedEntity
far = {"kind": "openai", "url": "http://127.0.0.1:9/v1"}
one = Endpoint(served_entities=(ServedEntity(name="one", backend="far"),))
gateway.check.validate(Config(backends={"far": far}, endpoints={"chat": one}), offline=True)
"""
_WORKER = """
import asyncio
from gateway.process.imports import without_rich
with without_rich():
    import gateway.process.worker
from gateway.app import create_app
from gateway.config import Config, Endpoint, ServedEntity
far = {"kind": "openai", "url": "http://127.0.0.1:9/v1"}
one = Endpoint(served_entities=(ServedEntity(name="one", backend="far"),))
app = create_app(Config(backends={"far": far}, endpoints={"chat": one}))
async def start():
    async with app.lifespan():
        await asyncio.sleep(0.1)
with without_rich():
    asyncio.run(start())
"""
_ENGINE = ("numpy", "torch", "transformers", "tokenizers", "PIL", "llguidance", "safetensors")
_NOT_ASKED_FOR = ("rich", "pygments", "regex", "pydantic", "jinja2", "redis", "grpc", "psycopg")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "more"),
    [
        (_SUPERVISOR, ("litestar", "uvicorn", "prometheus_client", "httpx", "h2")),
        (_WORKER, ("opentelemetry.sdk", "pyarrow")),
    ],
    ids=["supervisor", "worker"],
)
def test_a_gateway_over_remote_servers_imports_what_it_runs(script: str, more: tuple[str, ...]) -> None:
    """It is what `pip install interlingua` brings: its start and its memory are mostly imports."""
    heavy = (*_ENGINE, *_NOT_ASKED_FOR, *more)
    script = f"import sys\n{script}\nprint([name for name in {heavy} if name in sys.modules])"
    direct = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=direct)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_the_gateway_names_no_protocol_or_provider() -> None:
    """Names come from the registry. What depends on a protocol's name belongs into that protocol's own table."""
    names = re.compile(rf"""["']({"|".join((*ADAPTERS, "mindie"))})\w*["']""")
    allowed = {"config.py"}  # the defaults that a configuration file may change
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in SOURCES
        if path.is_relative_to(ROOT / "gateway") and path.name not in allowed
        for match in names.finditer(path.read_text())
    ]
    assert found == []


def test_no_module_is_named_for_what_others_share() -> None:
    assert [path for path in SOURCES if path.name.startswith(("utils", "common", "helpers"))] == []


@pytest.mark.slow
def test_modules_say_what_they_are() -> None:
    assert [path for path in SOURCES if parse(path).body and not ast.get_docstring(parse(path))] == []


def test_files_have_a_bounded_number_of_lines() -> None:
    lines = {path: path.read_text().count("\n") for path in SOURCES}
    assert {path: count for path, count in lines.items() if count > LINES} == {}


def test_folders_hold_a_bounded_number_of_modules() -> None:
    modules = Counter(path.parent.relative_to(ROOT) for path in SOURCES)
    assert {str(folder): count for folder, count in modules.items() if count > MODULES} == {}


@pytest.mark.slow
def test_every_source_folder_has_tests_at_the_mirrored_path() -> None:
    folders = {path.parent.relative_to(ROOT) for path in SOURCES if path.name != "__init__.py"}
    tested = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert {str(folder) for folder in folders - tested} - UNTESTED == set()


def test_the_version_has_a_section_in_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )


def decisions_by_code(tree: ast.Module) -> Iterator[str]:
    """What a module decides by the code of an error, each with its line."""
    faults = {("code", fault) for fault in errors.Fault}

    def is_code(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "code"

    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(is_code, (node.left, *node.comparators))):
            yield f"{node.lineno}: compares a code"
        elif isinstance(node, ast.Match) and is_code(node.subject):
            yield f"{node.lineno}: matches a code"
        elif isinstance(node, ast.keyword) and (node.arg, getattr(node.value, "value", None)) in faults:
            yield f"{node.value.lineno}: write fault=, which sets the code"


@pytest.mark.slow
def test_no_decision_depends_on_the_code_of_an_error() -> None:
    """`GatewayError.code` is text for clients, maybe an upstream's. Code branches on types, faults and statuses."""
    assert [f"{path}:{found}" for path in SOURCES for found in decisions_by_code(parse(path))] == []


@pytest.mark.parametrize(
    "source",
    [
        "if error.code == 'timeout': pass",
        "if 'timeout' in (1, error.code) or 1 < error.code: pass",
        "match error.code:\n    case 'timeout': pass",
        "raise errors.Refused('No.', code='upstream_timeout')",
    ],
)
def test_a_decision_by_the_code_of_an_error_is_found(source: str) -> None:
    assert len(list(decisions_by_code(ast.parse(source)))) == 1
