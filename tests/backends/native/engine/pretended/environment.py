"""A torch that reports an accelerator: the guard that it needs to believe in one, and its answers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def torch_that_has(kind: str, wait: Callable[[str], None], record: Callable[[], Any]) -> Iterator[None]:
    """Have torch report the device, and hand over operations that it would otherwise run by itself."""
    stream = SimpleNamespace(record_event=record)
    answers: dict[str, dict[str, Any]] = {
        "torch.accelerator": {
            "is_available": True,
            "current_accelerator": torch.device(kind),
            "device_count": 1,
            "get_memory_info": (2**28, 2**30),
            "get_device_capability": {"supported_dtypes": {torch.float32, torch.float16, torch.bfloat16}},
            "memory_allocated": 0,
            "max_memory_allocated": 0,
            "reset_peak_memory_stats": None,
            "empty_cache": None,
            "empty_host_cache": None,
            "current_stream": stream,
        },
        f"torch.{kind}": {
            "is_available": True,
            "device_count": 1,
            "current_device": 0,
            "get_rng_state": torch.zeros(1),
            "set_rng_state": None,
            "manual_seed_all": None,
            "_lazy_init": None,
            "get_device_name": "a pretended device",
        },
    }
    if kind == "cuda":
        more = {
            "is_bf16_supported": True,
            "get_device_capability": (9, 0),
            "set_sync_debug_mode": None,
            "get_sync_debug_mode": 0,
        }
        answers["torch.cuda"] |= more
    was_lifting = torch._C._only_lift_cpu_tensors()
    was_overwriting = torch.__future__.get_overwrite_module_params_on_conversion()
    with ExitStack() as exits:
        for module, functions in answers.items():
            for name, answer in functions.items():
                exits.enter_context(patch(f"{module}.{name}", lambda *_, _answer=answer, **__: _answer, create=True))
        exits.enter_context(patch("torch.accelerator.synchronize", lambda *_: wait("synchronize")))
        # transformers reads weights by several threads, of which only this one has the device.
        exits.enter_context(patch.dict(os.environ, {"HF_DEACTIVATE_ASYNC_LOAD": "1"}))
        # Else `torch.tensor(list, device=...)` would go round the mode, and `Module.to` would swap wrappers wrongly.
        torch._C._set_only_lift_cpu_tensors(True)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            yield
        finally:
            torch._C._set_only_lift_cpu_tensors(was_lifting)
            torch.__future__.set_overwrite_module_params_on_conversion(was_overwriting)


@cache
def load_guard() -> None:
    """Build `guard.cpp` once for this torch, and load it."""
    source = Path(__file__).with_name("guard.cpp")
    made = Path(tempfile.gettempdir()) / f"interlingua-pretended-{os.getuid()}" / f"guard-{torch.__version__}.so"
    if not made.exists():
        made.parent.mkdir(exist_ok=True, mode=0o700)
        home, built = Path(torch.__file__).parent, made.with_suffix(f".{os.getpid()}")
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{home / 'include'}", str(source)]
        subprocess.run([*command, "-o", str(built), f"-L{home / 'lib'}", "-lc10"], check=True)
        built.rename(made)
    ctypes.CDLL(str(made))
