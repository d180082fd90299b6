"""The second of two ranks, for `test_runner`: ``python -m ... FOLDER MODEL...``."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import torch

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.loading.weights import load
from backends.native.engine.parallel.gang import Gang
from backends.native.engine.parallel.runner import follow
from backends.native.engine.runner.packed import PackedRunner
from tests.backends.native.engine.parallel.alike import BLOCK_SIZE, BLOCKS, CHECKED, TIMEOUT, check


class _NextModel(Exception):
    pass


class _UntilAsleep(PackedRunner):
    def sleep(self) -> None:
        raise _NextModel


def main(folder: Path, models: list[str]) -> None:
    torch.set_num_threads(1)
    gang = Gang(1, 2, folder, torch.device("cpu"), TIMEOUT)
    for model in models:
        loaded = load(str(folder / model), ranks=2)
        if model in CHECKED:
            check(loaded.model)
        with suppress(_NextModel):
            follow(_UntilAsleep(loaded.model, KVCache(BLOCKS, BLOCK_SIZE)), gang)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
