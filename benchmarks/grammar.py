"""What grammars cost the engine: throughput of a batch with a quarter of its rows constrained, over that of a free one.

`python -m benchmarks.grammar`. Both batches sample with the bundled model, whose steps are the shortest there are, so
that a larger model's share is smaller. The goal is a ratio of at least 0.85.
"""

from __future__ import annotations

import statistics
import time

from backends.native.demo import WEIGHTS
from backends.native.engine.loop import Engine
from backends.native.engine.options import EngineOptions
from backends.native.engine.startup import load_engine
from backends.native.grammar import grammar_source
from backends.native.messages import SamplingParams, Submit
from schemas.ir import Grammar

ROWS = 32
TOKENS = 120
ROUNDS = 7
WORD = {"type": "string", "minLength": 400}
SCHEMA = {
    "type": "object",
    "properties": {"name": WORD, "tags": {"type": "array", "items": WORD}},
    "required": ["name"],
}


def main() -> None:
    """Print the ratio."""
    options = EngineOptions(str(WEIGHTS), dtype="float32", device="cpu", threads=1, max_sequences=ROWS)
    engine, _ = load_engine(options, lambda _: None)
    source = grammar_source(Grammar("json_schema", SCHEMA))
    ratios = []
    for _ in range(ROUNDS):
        free, mixed = seconds(engine, None), seconds(engine, source)
        ratios.append(free / mixed)
        print(
            f"free {ROWS * TOKENS / free:6.0f} tokens/s   mixed {ROWS * TOKENS / mixed:6.0f}   ratio {ratios[-1]:.3f}"
        )
    print(f"median ratio {statistics.median(ratios):.3f} (goal: 0.85)")


def seconds(engine: Engine, grammar: str | None) -> float:
    """Process time for a batch, every fourth row under `grammar`."""
    start = time.process_time()
    for seq in range(ROWS):
        sampling = SamplingParams(temperature=1.0, seed=seq)
        constrained = grammar if seq % 4 == 0 else None
        engine.submit(0, Submit(seq, (5, 6, 7), TOKENS, sampling, grammar=constrained))
    while engine.busy:
        engine.step()
    return time.process_time() - start


if __name__ == "__main__":
    main()
