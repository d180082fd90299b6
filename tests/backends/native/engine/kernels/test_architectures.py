"""The kernels compile for AVX2, AVX-512, AMX and NEON, and are right when compiled for AVX2."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backends.native.engine.kernels import jit
from backends.native.engine.kernels.libraries import LIBRARIES
from backends.native.engine.kernels.library_cache import FOLDER_VARIABLE

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TARGETS = [("x86_64", "x86-64-v3"), ("x86_64", "x86-64-v4"), ("x86_64", "sapphirerapids"), ("aarch64", "armv8.2-a")]
"""AVX2, AVX-512, AMX and NEON, as GCC names them."""
NUMERIC_TESTS = [
    "attention/test_cpu_decode.py",
    "attention/test_cpu_prefill.py",
    "kernels/test_block_product.py",
    "kernels/test_gemv.py",
    "kernels/test_top_k_top_p.py",
    "layers/test_fused_attention.py",
    "layers/test_fused_decoder_layer.py::test_it_equals_its_parts",
    "layers/test_fused_mlp.py",
    "layers/test_fused_norm.py",
    "sampling/test_gumbel.py",
    "state/test_causal_conv.py",
    "state/test_delta_rule.py",
    "state/test_griffin_update.py",
    "state/test_mamba_update.py",
    "state/test_selective_state.py",
]


def compiler_for(machine: str) -> str:
    """The compiler, or cross-compiler, for a kind of machine."""
    name = "g++" if machine == platform.machine() else f"{machine.replace('_', '-')}-linux-gnu-g++"
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"missing tool: {name}")
    return found


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize(("machine", "march"), TARGETS)
def test_every_source_compiles_without_a_warning(machine: str, march: str, name: str, tmp_path: Path) -> None:
    # Templates of one source take GCC a minute to optimize, and the warnings are the same without. GCC 12 takes the
    # undefined upper halves in its own intrinsics for a mistake.
    flags = (
        "-O0",
        "-Wall",
        "-Werror",
        "-Wno-uninitialized",
        "-Wno-maybe-uninitialized",
        "-fopenmp",
        "-fPIC",
        f"-march={march}",
    )
    compiled, compiler = tmp_path / "compiled.o", compiler_for(machine)
    try:
        jit.compile_object(LIBRARIES[name].source, compiled, *flags, compiler=compiler)
    except subprocess.CalledProcessError as error:
        pytest.fail(error.stderr)
    assert compiled.stat().st_size


@pytest.mark.timeout(900)
def test_the_numeric_tests_hold_when_compiled_for_avx2(tmp_path: Path) -> None:
    flags = set(jit._cpu_field("flags").split())
    if not {"avx2", "fma", "bmi2"} <= flags:
        pytest.skip("the CPU has no AVX2")
    if not {"avx512f", "avx_vnni"} & flags:
        pytest.skip("without AVX-512 and VNNI the kernels are compiled so in the tests themselves")
    compiler_for("x86_64")
    cache = tmp_path / "cache"
    tests = [str(Path(__file__).parents[1] / name) for name in NUMERIC_TESTS]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=Path(__file__).parents[5],
        env=os.environ | {jit.MARCH_VARIABLE: "x86-64-v3", FOLDER_VARIABLE: str(cache)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    assert {path.name.partition("-")[0] for path in cache.glob("*.so")} == set(LIBRARIES), result.stdout
