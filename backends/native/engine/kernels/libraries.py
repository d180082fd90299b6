"""The compiled libraries: for each source in `src/`, its exported functions and what the engine loses without it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "src"

# The sources assume LP64 (64-bit Linux and macOS), where a C long has 64 bits.
_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """One shared library, compiled from one source file.

    Attributes:
        name: the library's name, in file names and in the log.
        cost: what is slower without it, for the log.
        symbols: the exported functions; of each the result type and the argument types, as ctypes has them.
        folder: where `<name>.cpp` lies.
    """

    name: str
    cost: str
    symbols: Mapping[str, tuple[Any, ...]]
    folder: Path = SOURCES

    @property
    def source(self) -> Path:
        """The file that is compiled."""
        return self.folder / f"{self.name}.cpp"


def _for_dtypes(base: str, *arguments: Any) -> dict[str, tuple[Any, ...]]:
    """A function without result, once for float32 and once for bfloat16."""
    return {f"{base}_{dtype}": (None, *arguments) for dtype in ("float32", "bfloat16")}


LIBRARIES: dict[str, Library] = {
    library.name: library
    for library in (
        Library(
            "gemv",
            "decode of one sequence is about 1.5x slower",
            _for_dtypes("gemv", *[_POINTER] * 4, *[_LONG] * 3, _INT)
            | {"multiplies_in_float32": (_INT,), "multiplies_by_tiles": (_INT,)},
        ),
        Library(
            "block_product",
            "GGUF files take three to seven times the memory, decode of one sequence is 2x to 3x slower",
            _for_dtypes("multiply_blocks", *[_POINTER] * 2, _LONG, *[_POINTER] * 3, *[_LONG] * 2, _INT)
            | _for_dtypes("multiply_blocks_in_team", *[_POINTER] * 2, _LONG, *[_POINTER] * 4, *[_LONG] * 2)
            | _for_dtypes("expand_blocks", _POINTER, *[_LONG] * 2, _POINTER, _LONG, _INT)
            | _for_dtypes("look_up_blocks", *[_POINTER] * 2, _LONG, _POINTER, _LONG),
        ),
        Library(
            "fused_norm",
            "RMS norms take 2x to 3x as long, decode of one sequence is about 1.1x slower",
            _for_dtypes("rms_norm", *[_POINTER] * 3, *[_LONG] * 2, _FLOAT, _INT)
            | _for_dtypes("rms_norm_once", *[_POINTER] * 3, *[_LONG] * 2, _FLOAT, _INT)
            | _for_dtypes("rms_norm_silu", *[_POINTER] * 4, *[_LONG] * 2, _FLOAT, _INT)
            | _for_dtypes("rms_norm_sigmoid", *[_POINTER] * 4, *[_LONG] * 2, _FLOAT, _INT),
        ),
        Library(
            "fused_attention",
            "decode of 32 sequences is about 1.1x slower",
            _for_dtypes("rotate_and_store", *[_POINTER] * 9, _FLOAT),
        ),
        Library(
            "fused_mlp",
            "decode of 32 sequences is about 1.1x slower",
            _for_dtypes("silu_and_mul", *[_POINTER] * 2, *[_LONG] * 2, _INT)
            | _for_dtypes("gelu_and_mul", *[_POINTER] * 2, *[_LONG] * 2, _INT),
        ),
        Library(
            "fused_decoder_layer",
            "decode of up to 64 sequences on several threads is 1.2x to 1.5x slower",
            _for_dtypes("decoder_layers", _POINTER, _LONG, *[_POINTER] * 5),
        ),
        Library(
            "causal_conv",
            "decode of models with convolutions is about 1.1x slower",
            _for_dtypes("causal_conv_update", *[_POINTER] * 6, _INT),
        ),
        Library(
            "selective_state",
            "decode of 32 sequences of Mamba models takes two to three times as long",
            _for_dtypes("selective_state_update", *[_POINTER] * 11, _INT),
        ),
        Library(
            "mamba",
            "decode of Mamba, Falcon Mamba and Jamba is about 1.1x slower",
            _for_dtypes("mamba_update", *[_POINTER] * 6, *[_LONG] * 2, _INT),
        ),
        Library(
            "delta_rule",
            "decode of 32 sequences of models with gated delta rules takes two to three times as long",
            _for_dtypes("delta_rule_update", *[_POINTER] * 8),
        ),
        Library(
            "griffin",
            "decode of RecurrentGemma is about 1.1x slower",
            _for_dtypes("griffin_update", *[_POINTER] * 12),
        ),
        Library(
            "cpu_decode",
            "attention of sequences in decode is 2x to 6x slower",
            _for_dtypes("paged_decode", *[_POINTER] * 10, _FLOAT)
            | _for_dtypes("paged_decode_8_bits", *[_POINTER] * 10, _FLOAT),
        ),
        Library(
            "cpu_prefill",
            "attention of prompts in bfloat16 is about 2x slower",
            {"paged_prefill_bfloat16": (None, *[_POINTER] * 7, _FLOAT), "has_bfloat16_dot": (_INT,)},
        ),
        Library(
            "top_k_top_p",
            "sampling is about 2x slower",
            {"mask_top_k_top_p": (None, *[_POINTER] * 3, *[_LONG] * 2, _INT)},
        ),
        Library(
            "gumbel",
            "sampling is about 2x slower",
            {"add_gumbel_noise": (None, *[_POINTER] * 2, *[_LONG] * 2, _INT)},
        ),
    )
}
"""By name, in the order in which they are built ahead."""
