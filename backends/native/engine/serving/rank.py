"""A rank other than the first of an engine with `tensor_parallel`.

``python -m backends.native.engine.serving.rank RANK FOLDER OPTIONS``, which the engine starts and kills
(`parallel.gang`): the rank, the folder where the ranks find each other, and the engine's options as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import structlog

from backends.native.engine.serving.__main__ import configure_log, import_engine
from backends.native.machine import keep_freed_memory
from backends.native.protocol.engine_options import EngineOptions


def main(rank: int, folder: Path, options: EngineOptions) -> int:
    """Load this rank's share of the model and follow the engine until that ends this process."""
    configure_log()
    import_engine()
    from transformers.utils.logging import disable_progress_bar

    from backends.native.engine.errors import LoadError
    from backends.native.engine.factory import load_rank
    from backends.native.engine.parallel.runner import follow

    disable_progress_bar()
    try:
        runner, gang = load_rank(options, rank, folder)
    except LoadError as error:
        structlog.get_logger().error("rank.failed", rank=rank, why=str(error))
        return 1
    keep_freed_memory()
    follow(runner, gang)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=EngineOptions)))
