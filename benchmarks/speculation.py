"""What speculation gains: tokens per second of one sequence with it and without, in turns.

    python -m benchmarks.speculation [--model MODEL] [--draft-model MODEL] [--rounds 3] [--tokens 160] [--batch 1]

Two engines over the same model in memory answer the same prompts, one step after the other, since the machine's speed
changes meanwhile, and where weights lie in memory makes 5 % of a step. Their tokens must be equal. Seconds are CPU time
of one thread. Without `--model` it is the bundled model with questions that it knows; other models, named as in a
configuration, are asked what agents ask: edits of code, JSON by a schema, summaries with quotes, and for the worst case
a story and random tokens.
Both are asked what lets drafts begin and fail: records that differ in their values, a text that penalties keep from
repeating itself, letters at random. The goals: 1.8 times the tokens per second on edits, JSON and quotes, and never
less than 0.97.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from random import Random
from statistics import median
from typing import Any, NamedTuple

from msgspec.structs import replace
from transformers import AutoTokenizer

from backends.native.checkpoints.reference import prepare
from backends.native.demo import WEIGHTS
from backends.native.engine.factory import load_engine
from backends.native.engine.loop import Engine
from backends.native.engine.steps import Steps
from backends.native.grammar.grammar import grammar_source
from backends.native.protocol.engine_options import MTP, EngineOptions
from backends.native.protocol.messages import Ping, Pong, Ready, SamplingParams, Submit
from schemas.ir import Grammar

CODE = '''class Basket:
    """Things that somebody wants to buy."""

    def __init__(self, owner):
        self.owner = owner
        self.items = []

    def add(self, item, count=1):
        if count < 1:
            raise ValueError("count must be at least 1")
        self.items.append((item, count))

    def total(self, prices):
        return sum(prices[item] * count for item, count in self.items)
'''
TEXT = (
    "The city council decided on Tuesday to close the old bridge over the river for at least six months. Engineers had "
    "found cracks in two of the four pillars during an inspection in March. The mayor said that the safety of the "
    "citizens comes first. Shop owners on the eastern bank fear that they will lose half of their customers. A ferry "
    "will carry pedestrians across the river every fifteen minutes, free of charge."
)


class Workload(NamedTuple):
    """A prompt.

    `schema` makes the answer JSON, `sampling` sets parameters, and `alphabet` allows no tokens but those of its words.
    """

    name: str
    prompt: str
    schema: dict[str, Any] | None = None
    sampling: Mapping[str, float] = {}
    alphabet: str = ""


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_WORD = {"type": "string", "maxLength": 24}
AGENT = (
    Workload("code edit", f"Rename `item` to `product` in this code and repeat all of it:\n```python\n{CODE}```"),
    Workload(
        "JSON",
        f"Extract the facts from this text as JSON. {TEXT}",
        _object(
            decision=_object(
                decided_by=_WORD, day_of_week=_WORD, duration_in_months={"type": "integer", "maximum": 99}
            ),
            reason_for_closing=_WORD,
            number_of_damaged_pillars={"type": "integer", "maximum": 99},
            replacement=_object(kind_of_transport=_WORD, minutes_between_trips={"type": "integer", "maximum": 99}),
        ),
    ),
    Workload("quotes", f"Summarize this text. Quote its most important sentences word for word.\n\n{TEXT}"),
    Workload("story", "Tell me a story about a lighthouse."),
    Workload(
        "random",
        " ".join(Random(1).choices(["alpha", "beta", "gamma", "delta", "river", "stone", "green", "music"], k=80)),
    ),
)
LETTERS = " A B C D E F G H"
ADVERSARIAL = (
    Workload(
        "records",
        "Write twenty more lines like these. Every line has other values.\n"
        + "\n".join(
            f'{{"id": {1000 + 37 * row}, "name": "{name}", "age": {20 + 7 * row}, "code": "{name[:2]}{row * row}"}}'
            for row, name in enumerate(("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana"))
        ),
    ),
    # Drafts repeat the text, which the penalty forbids.
    Workload(
        "penalized",
        "Repeat this ten times: " + "the cat sat on the mat and " * 12,
        sampling={"repetition_penalty": 1.4},
    ),
    # Each pair of letters has occurred before, and says next to nothing about the letter that follows.
    Workload(
        "letters",
        "Write random letters:" + " ".join(Random(2).choices(LETTERS.split(), k=200)),
        sampling={"repetition_penalty": 1.1, "frequency_penalty": 0.5},
        alphabet=LETTERS,
    ),
    Workload(
        "dice",
        "Throw dice." + LETTERS * 20,
        sampling={"temperature": 20.0, "repetition_penalty": 1.0},
        alphabet=LETTERS,
    ),
)
BUNDLED = (
    Workload("repeat", "Repeat after me: the quick brown fox jumps over the lazy dog and the moon rises"),
    Workload("count", "Count from 3 to 13."),
    Workload("JSON", "What is the weather in Paris?", AGENT[1].schema),
    Workload("story", "Tell me a story."),
    Workload(
        "random",
        " ".join(Random(1).choices(["alpha", "beta", "gamma", "delta", "river", "stone", "green", "music"], k=80)),
    ),
)


def main() -> None:
    """Print a line for each workload and temperature."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(WEIGHTS))
    parser.add_argument("--draft-model", default="", help="a smaller model that drafts, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--only", nargs="*", default=[""], help="workloads whose names hold one of these words")
    given = parser.parse_args()
    folder = prepare(given.model, print)
    draft = prepare(given.draft_model, print) if given.draft_model not in ("", MTP) else given.draft_model
    options = EngineOptions(folder, dtype=given.dtype, device="cpu", threads=1, kv_tokens=16_384)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    without, ahead, ready = engines(options, draft)
    for workload in (BUNDLED if given.model == str(WEIGHTS) else AGENT) + ADVERSARIAL:
        if not any(word in workload.name for word in given.only):
            continue
        for temperature in given.temperatures:
            before = _counts(ahead)
            rounds = []
            for place in range(given.rounds):
                asked = [
                    _submit(
                        workload, tokenizer, ready.eos_token_ids, temperature, seq + place * given.batch, given.tokens
                    )
                    for seq in range(given.batch)
                ]
                rounds.append(measure(without, ahead, asked))
            drafted, accepted = (now - then for now, then in zip(_counts(ahead), before, strict=True))
            rates = [(tokens / one, tokens / two) for tokens, one, two in rounds]
            print(
                f"{workload.name:10} temperature {temperature}: {median(one for one, _ in rates):7.1f} tokens/s, "
                f"with speculation {median(two for _, two in rates):7.1f}, "
                f"ratio {median(two / one for one, two in rates):.3f}, drafted {drafted}, accepted {accepted}",
                flush=True,
            )


def engines(options: EngineOptions, draft_model: str = "") -> tuple[Engine, Engine, Ready]:
    """An engine without speculation and one with it, over one model in memory, and what the first announces."""
    without, ready = load_engine(options, lambda _: None)
    ahead, _ = load_engine(replace(options, speculation=True, draft_model=draft_model), lambda _: None)
    assert isinstance(without, Engine)
    assert isinstance(ahead, Engine)
    without._runner._model = ahead._runner._model  # type: ignore[attr-defined]  # noqa: SLF001
    return without, ahead, ready


def _submit(
    workload: Workload, tokenizer: Any, ends: tuple[int, ...], temperature: float, seq: int, tokens: int
) -> Submit:
    chat = [{"role": "user", "content": workload.prompt}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    grammar = grammar_source(Grammar("json_schema", workload.schema)) if workload.schema else None
    allowed = tokenizer(workload.alphabet, add_special_tokens=False)["input_ids"] if workload.alphabet else ()
    bias = tuple((token, 100.0) for token in sorted(set(allowed)))
    settings: dict[str, Any] = {"temperature": temperature, "seed": seq, "logit_bias": bias}
    sampling = SamplingParams(**settings | dict(workload.sampling))
    return Submit(seq, tuple(ids), tokens, sampling, eos_token_ids=ends, grammar=grammar)


def measure(without: Steps, ahead: Steps, asked: list[Submit]) -> tuple[int, float, float]:
    """Tokens, and the seconds of decoding of both engines."""
    found = {engine: {one.seq: list[int]() for one in asked} for engine in (without, ahead)}
    taken = dict.fromkeys(found, 0.0)
    for engine, answers in found.items():
        for one in asked:
            engine.handle(0, one)
        while not all(answers.values()):  # the prompts, and a first token each
            _step(engine, answers)
    first = sum(map(len, found[without].values()))
    turn = list(found.items())
    while without.busy or ahead.busy:
        for engine, answers in turn:
            if engine.busy:
                taken[engine] += _step(engine, answers)
        turn.reverse()  # caches and clocks favour neither place
    assert found[without] == found[ahead], "speculation changed the tokens"
    return sum(map(len, found[without].values())) - first, taken[without], taken[ahead]


def _step(engine: Steps, found: dict[int, list[int]]) -> float:
    began = time.process_time()
    outputs = engine.step()
    seconds = time.process_time() - began
    for step in outputs.values():
        for output in step.outputs:
            found[output.seq] += output.ids
    return seconds


def _counts(engine: Steps) -> tuple[int, int]:
    pong = engine.handle(0, Ping(0))
    assert isinstance(pong, Pong)
    return pong.draft_tokens, pong.accepted_tokens


if __name__ == "__main__":
    main()
