"""Compiles C++ when the engine starts, where there is a compiler, and keeps what came of it for the next start.

Whatever is built here must have a plain way beside it: a machine without a compiler, or without a cache folder that
can be written, gets None. The libraries are for one kind of CPU (`-march=native`), which is part of their names. OpenMP
is compiled in and not linked: its symbols are found among those that torch has loaded, so that there is one set of
threads. Import torch first.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog

log = structlog.get_logger()
Routine = Callable[..., None]

NUMBERS = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

// Vectors are GCC's own, which other CPUs than x86's can have, too.
constexpr long LANES = 16;
typedef float floats __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef int32_t integers __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(32)));
typedef float eight __attribute__((vector_size(32)));
typedef float four __attribute__((vector_size(16)));

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float total(floats values) {
  eight halved[2];
  std::memcpy(halved, &values, sizeof halved);
  const eight sums = halved[0] + halved[1];
  four quartered[2];
  std::memcpy(quartered, &sums, sizeof quartered);
  const four left = quartered[0] + quartered[1];
  return (left[0] + left[2]) + (left[1] + left[3]);
}

// Cephes' expf: two to a whole number, times a polynomial. What is no number stays none; far below, it is 0.
inline floats exponential(floats x) {
  const floats low = floats{} - 87.0f, clamped = x < low ? low : x;
  const floats scaled = clamped * 1.44269504088896341f;
  const floats nearest = scaled + (scaled < 0.0f ? floats{} - 0.5f : floats{} + 0.5f);
  const integers power = __builtin_convertvector(nearest, integers);
  const floats whole = __builtin_convertvector(power, floats);
  const floats r = clamped - whole * 0.693359375f + whole * 2.12194440e-4f;
  floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return x < low ? floats{} : p * (floats)((power + 127) << 23);
}

#ifdef __AVX512F__  // GCC takes these in pieces
inline bool any(integers mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask); }
inline words longer(halves values) { return (words)_mm512_cvtepu16_epi32((__m256i)values); }
inline halves shorter(words values) { return (halves)_mm512_cvtepi32_epi16((__m512i)values); }
#else
inline bool any(integers mask) {
  int32_t found = 0;
  for (int lane = 0; lane < LANES; lane++) found |= mask[lane];
  return found;
}
inline words longer(halves values) { return __builtin_convertvector(values, words); }
inline halves shorter(words values) { return __builtin_convertvector(values, halves); }
#endif

struct Float32 {
  using number = float;
  using vector = floats;
  static float widen(number value) { return value; }
  static floats widen(vector values) { return values; }
  static number narrow(float value) { return value; }
  static vector narrow(floats values) { return values; }
};

struct BFloat16 {
  using number = uint16_t;
  using vector = halves;
  static float widen(number value) { return as_float((uint32_t)value << 16); }
  static floats widen(vector values) { return (floats)(longer(values) << 16); }
  static number narrow(float value) {  // to the nearest, of two the even; what is no number stays none
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return value != value ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }
  static vector narrow(floats values) {
    const words bits = (words)values, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return shorter(values != values ? words{} + 0x7fc0 : rounded);
  }
};

// LANES numbers from and to memory, or the `left` that there are.
template <class Kind>
floats read(const typename Kind::number* from, long left) {
  typename Kind::vector values = {};
  if (left >= LANES) std::memcpy(&values, from, sizeof values);
  else std::memcpy(&values, from, left * sizeof *from);
  return Kind::widen(values);
}

template <class Kind>
void write(typename Kind::number* to, floats numbers, long left) {
  const typename Kind::vector values = Kind::narrow(numbers);
  if (left >= LANES) std::memcpy(to, &values, sizeof values);
  else std::memcpy(to, &values, left * sizeof *to);
}

template <class Kind>
floats rounded(floats values) { return Kind::widen(Kind::narrow(values)); }
"""
"""What all sources begin with."""
_COMPILE = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-c")
_SECONDS = 60  # takes one or two


@cache
def load(name: str, source: str) -> ctypes.CDLL | None:
    """The library that C++ `source` makes after `NUMBERS`, or None if it cannot be made here; the log says why."""
    source = NUMBERS + source
    digest = blake2b("\0".join((source, *_COMPILE, platform.machine(), _cpu())).encode(), digest_size=8)
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "interlingua")
        library = folder / f"{name}-{digest.hexdigest()}.so"
        if not library.exists():
            _build(source, library)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: nobody's home
        log.info("kernel.not_built", kernel=name, why=_told(error))
        return None


def routine(library: str, source: str, name: str, *arguments: type) -> Routine | None:
    """The function `name` of the library that `source` makes, which takes `arguments` (of ctypes) and gives nothing.

    None if it cannot be made here, or is not among what this kind of CPU can have.
    """
    function: Any = getattr(load(library, source), name, None)
    if function is None:
        return None
    function.argtypes, function.restype = arguments, None
    found: Routine = function
    return found


def _build(source: str, library: Path) -> None:
    """Several processes may do so at once: each in a folder of its own, and the last to rename it wins."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler")
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(dir=library.parent) as folder:
        code, compiled, linked = (Path(folder, f"code.{ending}") for ending in ("cpp", "o", "so"))
        code.write_text(source)
        for command in ((*_COMPILE, code, "-o", compiled), ("-shared", compiled, "-o", linked)):
            subprocess.run((compiler, *command), check=True, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603
        linked.replace(library)


def _cpu() -> str:
    """What the CPU can do, where the system tells."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _told(error: Exception) -> str:
    errors = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return errors.strip() or str(error)
