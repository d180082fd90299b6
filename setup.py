"""The build. What is written in C is compiled where there is a C compiler; where there is none, Python does the same.

With `INTERLINGUA_COMPILE=1` a wheel has the modules of the fast path compiled, too (`make wheel`). Cython compiles the
source as it is, which also runs without. It checks no types, so what a module does is the same; what it saves is the
interpreter. A class whose bases are compiled becomes an extension type, whose attributes are fields of a C struct:
those that its methods assign, which is all that mypy lets anybody else assign. Nothing can be added to such a class or
its objects at run time.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

COMPILED = [
    "adapters/formats/frames.py",
    "adapters/formats/sse.py",
    "adapters/formats/text_runs.py",
    "adapters/openai/client.py",
    "adapters/openai/inbound/chat_stream.py",
    "adapters/openai/inbound/decode.py",
    "adapters/openai/inbound/plain.py",
    "adapters/openai/inbound/stream.py",
    "adapters/openai/remote/decode_answer.py",
    "adapters/openai/remote/encode_request.py",
    "adapters/openai/remote/failures.py",
    "adapters/openai/remote/plain_answer.py",
    "adapters/openai/remote/text_runs.py",
    "adapters/openai/server.py",
    "backends/base.py",
    "backends/fairness.py",
    "backends/prompts.py",
    "backends/remote/asking.py",
    "backends/remote/backend.py",
    "backends/remote/direct.py",
    "backends/remote/direct_stream.py",
    "backends/remote/event_stream.py",
    "backends/remote/resilience/breaker.py",
    "backends/remote/resilience/retry.py",
    "backends/transport/begun.py",
    "backends/transport/client.py",
    "backends/transport/connection.py",
    "backends/transport/deadline.py",
    "backends/transport/outbox/plain.py",
    "backends/transport/pool.py",
    "backends/transport/received.py",
    "backends/transport/waiting_line.py",
    "gateway/access/keys.py",
    "gateway/access/rules.py",
    "gateway/deployment/endpoint_counts.py",
    "gateway/http/accounting.py",
    "gateway/http/direct/lane.py",
    "gateway/http/direct/request.py",
    "gateway/http/direct/stream.py",
    "gateway/http/observation/observer.py",
    "gateway/http/record.py",
    "gateway/observability/counters.py",
    "gateway/observability/logging.py",
    "gateway/observability/metrics.py",
    "gateway/observability/request_log.py",
    "gateway/routing/backend_health.py",
    "gateway/routing/router.py",
    "gateway/routing/target.py",
    "gateway/server/client_connection.py",
    "gateway/server/client_transport.py",
    "gateway/server/direct_way.py",
    "gateway/server/request_head.py",
    "gateway/service.py",
]
"""What runs for each request or chunk (`python -m benchmarks.budget` lists layers)."""
WRITTEN_IN_C = ["backends/transport/outbox/compiled.c", "gateway/access/usual_rows/compiled.c"]
CYTHON = "Cython>=3.3,<4"
DIRECTIVES = {"language_level": 3, "annotation_typing": False, "binding": True}
WEAK = "__weakref__"


class Compile(build_ext):
    """Declares, translates and compiles the modules."""

    def run(self) -> None:
        """Compile them."""
        try:
            from Cython.Build import cythonize
        except ImportError:
            sys.exit(f"INTERLINGUA_COMPILE is set, but there is no Cython: pip install '{CYTHON}', or unset it.")
        folder = Path("build/declared")
        declare(COMPILED, folder)
        translated = cythonize(
            [Extension(each.name, each.sources) for each in self.extensions if each.sources[0] in COMPILED],
            nthreads=os.cpu_count() or 1,
            build_dir="build/translated",
            include_path=[str(folder)],
            compiler_directives=DIRECTIVES,
            quiet=True,
        )
        sources = {each.name: each.sources for each in translated}
        for each in self.extensions:
            each.sources = sources.get(each.name, each.sources)
        self.parallel = os.cpu_count() or 1
        try:
            super().run()
        except CompileError as error:
            sys.exit(f"INTERLINGUA_COMPILE is set, but the C compiler failed (is there one?): {error}")


class Type(NamedTuple):
    """An extension type.

    Attributes:
        text: its declaration.
        fields: of its objects, also those of its bases.
    """

    text: str
    fields: frozenset[str]


def declare(files: list[str], folder: Path) -> None:
    """Write the declarations of these modules' extension types (`.pxd`, Cython's augmenting files)."""
    modules = {module_of(file): ast.parse(Path(file).read_text()) for file in files}
    types: dict[tuple[str, str], Type] = {}
    # A base may be in any of them: until nothing is added.
    while more := dict(found for name, module in modules.items() for found in _declared(name, module, types)):
        types |= more
    for name in modules:
        path = folder.joinpath(*name.split(".")).with_suffix(".pxd")
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in [*path.parents][: name.count(".")]:
            (package / "__init__.pxd").touch()
        path.write_text("".join(found.text for (module, _), found in types.items() if module == name))


def _declared(
    name: str, module: ast.Module, types: Mapping[tuple[str, str], Type]
) -> Iterator[tuple[tuple[str, str], Type]]:
    """The extension types of a module whose bases are among `types`, and which are not."""
    origins = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in module.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    for node in module.body:
        if not isinstance(node, ast.ClassDef) or (name, node.name) in types or node.decorator_list or node.keywords:
            continue
        bases = [base.id if isinstance(base, ast.Name) else "" for base in node.bases]
        found = [types.get(origins.get(base, (name, base))) for base in bases]
        inherited = [each.fields for each in found if each is not None]
        fields = frozenset(_fields(node)).difference(*inherited)
        if len(inherited) < len(bases) or fields & _own(node) or {*_attributes(node, ast.Del)} & fields:
            continue  # a base that stays Python; a field with a default in the class, or one that is deleted
        text = "".join(f"from {origins[base][0]} cimport {base}\n" for base in bases if base in origins)
        text += f"cdef class {node.name}({', '.join(bases)}):\n    pass\n"
        text += "".join(f"    cdef {'' if field == WEAK else 'public '}object {field}\n" for field in sorted(fields))
        yield (name, node.name), Type(text, fields.union(*inherited))


def _own(node: ast.ClassDef) -> set[str]:
    """What a class has itself: methods and values."""
    functions = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned = [target for each in node.body if isinstance(each, ast.Assign) for target in each.targets]
    assigned += [each.target for each in node.body if isinstance(each, ast.AnnAssign) and each.value is not None]
    return functions | {target.id for target in assigned if isinstance(target, ast.Name)}


def _fields(node: ast.ClassDef) -> set[str]:
    """What a class says or its methods show that its objects have."""
    fields = {WEAK}
    for each in node.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__slots__":
            slots = ast.literal_eval(each.value)
            fields = {slots} if isinstance(slots, str) else {*slots}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is None:
            fields.add(each.target.id)
    return fields.union(_attributes(node, ast.Store))


def module_of(file: str) -> str:
    """The module of a file."""
    return file.rpartition(".")[0].replace("/", ".")


def _attributes(node: ast.ClassDef, context: type[ast.expr_context]) -> Iterator[str]:
    """The attributes of `self` that the methods of a class assign (`ast.Store`) or delete (`ast.Del`)."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, context) and ast.unparse(each.value) == "self":
            yield each.attr


def arguments(environment: Mapping[str, str], command: list[str]) -> dict[str, object]:
    """What `setup` gets: Python is compiled only where that is asked for, and never for an editable installation."""
    modules = [_extension(file, optional=True) for file in WRITTEN_IN_C]
    if environment.get("INTERLINGUA_COMPILE", "0") == "0" or {"editable_wheel", "sdist"} & set(command):
        return {"ext_modules": modules}
    modules += [_extension(file, optional=False) for file in COMPILED]
    return {"ext_modules": modules, "cmdclass": {"build_ext": Compile}, "setup_requires": [CYTHON]}


def _extension(file: str, *, optional: bool) -> Extension:
    return Extension(module_of(file), [file], extra_compile_args=["-O2", "-g0"], optional=optional)


if __name__ == "__main__":
    setup(**arguments(os.environ, sys.argv))
