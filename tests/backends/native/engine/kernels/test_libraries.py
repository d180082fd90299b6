"""The table of libraries is complete, and says of each function what the source says."""

from __future__ import annotations

import ctypes
import re

import pytest

from backends.native.engine.kernels.libraries import LIBRARIES, SOURCES

TYPES = {"long": ctypes.c_long, "int": ctypes.c_int, "float": ctypes.c_float}
DECLARATION = re.compile(r'extern "C" (void|int) (\w+)\(([^)]*)\)')
INSTANCE = re.compile(r"^([A-Z_]+)\((\w+),", re.MULTILINE)
MACRO = re.compile(r"#define ([A-Z_]+)\(name")


def declared(name: str) -> dict[str, tuple[object, ...]]:
    """The functions that a source exports, with ctypes' types: its declarations, and its macros' instances."""
    text = (SOURCES / f"{name}.cpp").read_text().replace("\\\n", "\n")
    found: dict[str, tuple[object, ...]] = {}
    for declaration in DECLARATION.finditer(text):
        result, symbol, parameters = declaration.groups()
        types = tuple(
            ctypes.c_void_p if "*" in each else TYPES[each.split()[-2]] for each in parameters.split(",") if each
        )
        # A declaration of `name` belongs to the macro before it.
        macros = MACRO.findall(text, 0, declaration.start())
        instances = [instance for macro, instance in INSTANCE.findall(text) if macro == (macros or [""])[-1]]
        symbols = instances if symbol == "name" else [symbol]
        found |= dict.fromkeys(symbols, (None if result == "void" else ctypes.c_int, *types))
    return found


def test_every_source_is_a_library_with_a_cost() -> None:
    assert {path.stem for path in SOURCES.glob("*.cpp")} == set(LIBRARIES)
    assert all(library.cost for library in LIBRARIES.values())


@pytest.mark.parametrize("name", LIBRARIES)
def test_functions_and_argument_types_are_those_of_the_source(name: str) -> None:
    assert LIBRARIES[name].symbols == declared(name)
