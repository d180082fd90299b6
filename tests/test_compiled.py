"""The compiled wheel: what is compiled, and when. `make test-compiled` runs the gateway's tests on it."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.processes import SCRIPTED, serving
from tests.missing_tools import missing

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def setup() -> Iterator[Any]:
    """The module, which imports setuptools, and with it a `distutils` that other tests are not to find."""
    if finder := getattr(sys.modules.get("_distutils_hack"), "DISTUTILS_FINDER", None):
        # `find_spec("pip")`, which other tests call, makes it find the standard library's `distutils` from then on.
        vars(finder).pop("spec_for_distutils", None)
    pytest.importorskip("setuptools", reason=missing("setuptools"))
    yield importlib.import_module("setup")
    for name in [name for name in sys.modules if name.split(".")[0] == "distutils"]:
        del sys.modules[name]


def test_what_is_compiled_exists(setup: Any) -> None:
    assert [file for file in setup.COMPILED if not (ROOT / file).is_file()] == []
    assert sorted({*setup.COMPILED}) == setup.COMPILED


def test_only_a_wheel_is_compiled_and_only_if_that_is_asked_for(setup: Any) -> None:
    asked = {"INTERLINGUA_COMPILE": "1"}
    for environment, command in (
        ({}, "bdist_wheel"),
        ({"INTERLINGUA_COMPILE": "0"}, "bdist_wheel"),
        (asked, "editable_wheel"),
        (asked, "sdist"),
    ):
        found = setup.arguments(environment, ["setup.py", command])
        assert [*found] == ["ext_modules"]
        assert [each.sources for each in found["ext_modules"]] == [[file] for file in setup.WRITTEN_IN_C]
        assert all(each.optional for each in found["ext_modules"]), "without a compiler, Python does the same"
    modules = setup.arguments(asked, ["setup.py", "bdist_wheel"])["ext_modules"]
    assert [each.sources for each in modules] == [[file] for file in (*setup.WRITTEN_IN_C, *setup.COMPILED)]
    assert not any(each.optional for each in modules[len(setup.WRITTEN_IN_C) :])


def test_a_missing_translator_is_named(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Cython.Build", None)
    command = setup.Compile(importlib.import_module("setuptools").Distribution())
    with pytest.raises(SystemExit, match="INTERLINGUA_COMPILE is set, but there is no Cython: pip install"):
        command.run()


def test_classes_become_extension_types_with_the_fields_that_their_methods_assign(
    setup: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/base.py").write_text(
        "class Base:\n    __slots__ = ('_one',)\n    def set(self):\n        self._one, self.two = 1, 2\n"
        "class Deletes:\n    def set(self):\n        self.one = 1\n        del self.one\n"
        "class HasDefault:\n    one = 1\n    def set(self):\n        self.one = 2\n"
        "class Struct(Foreign):\n    one: int\n"
    )
    (tmp_path / "a/more.py").write_text(
        "from a.base import Base, Deletes\nclass More(Base):\n    def set(self):\n        self._one = self.three = 3\n"
        "class Own(Deletes):\n    pass\nclass Weak:\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    setup.declare(["a/base.py", "a/more.py"], tmp_path / "declared")
    assert (tmp_path / "declared/a/base.pxd").read_text().splitlines() == [
        "cdef class Base():",
        "    pass",
        "    cdef public object _one",
        "    cdef public object two",
    ]
    more = (tmp_path / "declared/a/more.pxd").read_text()
    assert "from a.base cimport Base\ncdef class More(Base):\n" in more
    assert "three" in more
    assert "_one" not in more, "a second field would hide the base's"
    assert "cdef class Weak():\n    pass\n    cdef object __weakref__\n" in more
    assert "Own" not in more


@pytest.mark.skipif("INTERLINGUA_COMPILED" not in os.environ, reason="`make test-compiled` builds them")
def test_tests_and_workers_run_what_was_compiled(setup: Any, tmp_path: Path) -> None:
    names = [setup.module_of(file) for file in setup.COMPILED]
    assert [name for name in names if not str(importlib.import_module(name).__file__).endswith(".so")] == []
    config = tmp_path / "gateway.toml"
    config.write_text(SCRIPTED.format(workers=1))
    with serving("--config", str(config), log=tmp_path / "log") as gateway:
        (worker,) = gateway.workers()
        loaded = Path(f"/proc/{worker}/maps").read_text()
    # A worker with a scripted backend imports no remotes.
    wanted = [file.removesuffix(".py") for file in setup.COMPILED if file.startswith("gateway/")]
    assert [name for name in wanted if not re.search(rf"/{name}\.\S+\.so\n", loaded)] == []
