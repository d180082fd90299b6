"""The cost of grammars: throughput of a batch with a quarter of its rows constrained, relative to a free one.

`python -m benchmarks.grammar`. Both batches sample with the bundled model, whose steps are so short that the share of
grammars is larger than with any other model. They run in turns, step by step, since the machine's speed changes
meanwhile. The goal is a ratio of at least 0.85.
"""

from __future__ import annotations

import statistics
import time

from backends.native.demo import WEIGHTS
from backends.native.engine.factory import load_engine
from backends.native.engine.steps import Steps
from backends.native.grammar.grammar import grammar_source
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import SamplingParams, Submit
from schemas.ir import Grammar

ROWS = 32
TOKENS = 120
ROUNDS = 15
WORD = {"type": "string", "minLength": 400}
SCHEMA = {
    "type": "object",
    "properties": {"name": WORD, "tags": {"type": "array", "items": WORD}},
    "required": ["name"],
}


def main() -> None:
    """Print the ratio."""
    options = EngineOptions(str(WEIGHTS), dtype="float32", device="cpu", threads=1, max_sequences=ROWS)
    free, mixed = (load_engine(options, lambda _: None)[0] for _ in range(2))
    ratios = []
    for place in range(-1, ROUNDS):  # the first round only warms up
        submit(free, None)
        submit(mixed, grammar_source(Grammar("json_schema", SCHEMA)))
        taken = dict.fromkeys((free, mixed), 0.0)
        while free.busy or mixed.busy:
            for engine in (free, mixed)[:: place % 2 or -1]:
                taken[engine] += seconds(engine)
        if place >= 0:
            rates = [ROWS * TOKENS / taken[engine] for engine in (free, mixed)]
            ratios.append(rates[1] / rates[0])
            print(f"free {rates[0]:6.0f} tokens/s   mixed {rates[1]:6.0f}   ratio {ratios[-1]:.3f}")
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"median ratio {median:.3f} (goal: 0.85), half of them between {low:.3f} and {high:.3f}")


def submit(engine: Steps, grammar: str | None) -> None:
    """Submit a batch in which every fourth row has `grammar`."""
    for seq in range(ROWS):
        sampling = SamplingParams(temperature=1.0, seed=seq)
        engine.handle(0, Submit(seq, (5, 6, 7), TOKENS, sampling, grammar=None if seq % 4 else grammar))


def seconds(engine: Steps) -> float:
    """CPU seconds of a step; 0 if the engine is idle."""
    start = time.process_time()
    if engine.busy:
        engine.step()
    return time.process_time() - start


if __name__ == "__main__":
    main()
