"""Compile every kernel of Triton for a device that need not be there: `compile_triton.py cuda:90`.

In bfloat16, for the shapes of an 8B model and for the widest heads. Prints a line a kernel: its name, the kilobytes of
shared memory that a program takes, and the registers that did not fit, where the compiler tells.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from backends.native.engine.kernels import triton_attention, triton_layers, triton_linear, triton_sampling

_TYPES = {
    "*i64": ("tables", "starts", "contexts", "slots"),
    "*fp32": ("parts", "sums", "key_scales", "value_scales", "scales"),
    "*i8": ("levels",),
    "fp32": ("epsilon", "scale", "softcap"),
    "i32": (
        "width",
        "count",
        "inputs",
        "outputs",
        "table_width",
        "row_stride",
        *(f"{of}_{kind}" for of in ("query", "key", "value") for kind in ("stride", "head_stride")),
    ),
}
"""Arguments by their type; others are bfloat16 tensors."""
SHARED = {"cuda:80": 163, "cuda:90": 227, "hip:gfx942": 64}
"""Kilobytes that a program may take."""


def kernels() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]]:
    """Kernels, types of arguments beside `_TYPES`, their constants and options of the compiler."""
    layers = triton_layers
    yield layers._norm_rows, {"sums": "*bf16"}, {"WIDTH_PADDED": 4096, "ADDS": True}, {"num_warps": 8}
    sizes = {"HEADS": 32, "KEY_HEADS": 8, "WIDTH": 128, "ROTATED": 128}
    padded = {"HALF_PADDED": 64, "REST_PADDED": 1, "WIDTH_PADDED": 128}
    yield layers._rotate_and_store, {}, sizes | padded | {"NORMED": True}, {"num_warps": 1}
    yield layers._activate_and_multiply, {}, {"STRETCH": 1024, "GELU": False}, {}
    for width in (64, 128, 256):
        heads = {"HEADS": 32, "KEY_HEADS": 8, "WIDTH": width, "WIDTH_PADDED": width, "PAGE": 16, "WINDOW": 0}
        heads |= {"VALUE_WIDTH": width, "VALUE_WIDTH_PADDED": width, "HAS_SOFTCAP": True, "HAS_SINKS": True}
        heads |= {"CHUNK": 0, "HAS_ALIBI": False}
        for decodes in (True, False):
            constants = heads | triton_attention.tiles(4, 2 * width, decodes=decodes) | {"SPLITS": 8 if decodes else 1}
            options = {"num_warps": 2 if decodes else 4, "num_stages": 3}
            yield triton_attention._attend, {}, constants | {"IN_8_BITS": False}, options
            pages = {"keys": "*i8", "values": "*i8"}
            yield triton_attention._attend, pages, constants | {"IN_8_BITS": True}, options
    yield triton_attention._combine, {}, {"VALUE_WIDTH": 128, "VALUE_WIDTH_PADDED": 128, "SPLITS": 8}, {}
    for count in (1, 32, 256):
        constants = triton_linear.tiles(count, 4096) | {"HAS_BIAS": True}
        yield triton_linear._multiply, {}, constants, triton_linear.OPTIONS
    yield triton_sampling._add_noise, {"scores": "*fp32", "keys": "*i32"}, {"STRETCH": 1024}, {}
    parameters = {"scores": "*fp32", "counts": "*i64", "masses": "*fp32"}
    yield triton_sampling._mask_row, parameters, {"TILE": 8192}, {"num_warps": 16}


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], target: GPUTarget, options: Any) -> Any:
    """A kernel for a target."""
    known = {name: kind for kind, names in _TYPES.items() for name in names} | types
    signature = {name: "constexpr" if name in constants else known.get(name, "*bf16") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return triton.compile(ASTSource(kernel, signature, constexprs=places), target=target, options=options)


def main(name: str) -> None:
    backend, architecture = name.split(":")
    target = GPUTarget(
        backend, int(architecture) if backend == "cuda" else architecture, 32 if backend == "cuda" else 64
    )
    for kernel, types, constants, options in kernels():
        made = compiled(kernel, types, constants, target, options)
        shared = made.metadata.shared / 1024
        print(kernel.__name__, constants.get("WIDTH", ""), f"{shared:.0f} KiB")
        assert shared <= SHARED[name], f"{kernel.__name__} {constants} takes {shared:.0f} KiB of {SHARED[name]}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        triton.knobs.cache.dir = folder
        main(sys.argv[1])
