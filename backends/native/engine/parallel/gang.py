"""The processes that run one model together (tensor parallelism): one for each device; the first is the engine.

Rank 0, the leader, has the scheduler, samples and serves. The others do what it tells them, so all ranks make the same
calls in the same order, and the sums within a layer find their partners. They live and die together: the kernel kills
the others when the leader ends, and the leader ends when one of them does. Who supervises the engine sees its end.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from datetime import timedelta
from pathlib import Path

import msgspec
import structlog
import torch
from torch import distributed

from backends.native.engine.devices import make_current
from backends.native.protocol.engine_options import EngineOptions
from backends.process import start_bound_to_parent

log = structlog.get_logger()

_MODULE = "backends.native.engine.serving.rank"
# Ranks wait for the leader for as long as nobody asks for anything. One that ends is noticed by its process.
_NEVER = timedelta(days=365)
# Seconds in which the leader can report why a rank ended while it loaded: mostly it fails by the same.
_REPORT_TIME = 10.0


class Gang:
    """One rank among the others. The constructor returns when all have joined.

    Args:
        rank: this process's, from 0.
        size: how many they are.
        folder: where they find each other; only this user may enter it.
        device: this rank's.
        timeout: how long a rank waits for the others, within a step and between steps.
    """

    def __init__(self, rank: int, size: int, folder: Path, device: torch.device, timeout: timedelta = _NEVER) -> None:
        self.rank = rank
        self.size = size
        # Ranks on one machine need no network. An operator's choice stays.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        os.environ["LOCAL_RANK"] = str(device.index or 0)  # where transformers loads this rank's share to
        backend = "gloo"
        if device.type != "cpu":
            make_current(device)
            # What a step consists of is sent between hosts, the sums within layers between devices.
            backend = f"cpu:gloo,{device.type}:{distributed.get_default_backend_for_device(device)}"
        store = distributed.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]  # torch's stubs lack it
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)

    def tell(self, numbers: array[int]) -> None:
        """Send int64 numbers to all other ranks, as the leader."""
        distributed.broadcast(torch.tensor([len(numbers)]), 0)
        distributed.broadcast(torch.frombuffer(numbers, dtype=torch.int64), 0)

    def hear(self) -> array[int]:
        """Wait for the leader's next numbers."""
        length = torch.empty(1, dtype=torch.int64)
        distributed.broadcast(length, 0)
        numbers = array("q", bytes(8 * int(length)))
        distributed.broadcast(torch.frombuffer(numbers, dtype=torch.int64), 0)
        return numbers

    def least(self, number: int) -> int:
        """The least of all ranks' numbers. All must call it."""
        found = torch.tensor([number])
        distributed.all_reduce(found, distributed.ReduceOp.MIN)
        return int(found)

    def leave(self) -> None:
        """Leave the process group."""
        distributed.destroy_process_group()


class LeadingGang(Gang):
    """The gang as its leader sees it: it starts the other ranks, and ends with them.

    Args:
        options: the engine's; `tensor_parallel` is how many ranks there are.
        device: the leader's; that of rank n is n further.
    """

    def __init__(self, options: EngineOptions, device: torch.device) -> None:
        self._loaded = self._ended = False
        self._folder = Path(tempfile.mkdtemp(prefix="gang-"))
        given = msgspec.json.encode(options).decode()
        self._processes = [
            start_bound_to_parent([sys.executable, "-m", _MODULE, str(rank), str(self._folder), given])
            for rank in range(1, options.tensor_parallel)
        ]
        atexit.register(self.end)
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._watch, args=(rank, process), name=f"rank-{rank}", daemon=True).start()
        super().__init__(0, options.tensor_parallel, self._folder, device)

    def loaded(self) -> None:
        """From now on the end of a rank ends this process at once. All ranks have found each other."""
        self._loaded = True
        shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """End the other ranks. Idempotent."""
        self._ended = True
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if self._ended:
            return
        log.error("rank.exited", rank=rank, code=code)
        if not self._loaded:
            time.sleep(_REPORT_TIME)
        # Not by an exception: this process's own thread may wait for that rank within a sum, and some libraries of
        # accelerators wait for ever.
        self.end()
        os._exit(1)


def _loopback() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
