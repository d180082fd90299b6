"""Measure structured output: ``python -m tools.demo_model.evaluate_schemas [DIR]``.

Asks for objects and tool calls of 200 fresh schemas, through the native backend and its grammars, and prints the share
of answers that end by themselves within 128 tokens: greedily, and sampled at temperature 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from adapters.fold import fold
from backends.native.backend import NativeBackend
from backends.native.demo import WEIGHTS
from schemas.ir import ChatPrompt, FinishReason, Generate, Grammar, Message, Sampling, Stopping, Tool, ToolChoice
from tools.demo_model.samples.schema_chats import held_out
from tools.demo_model.samples.schemas import draw_object
from tools.demo_model.vocabulary import NAMES_OF_PROPERTIES, UNSEEN_PROPERTIES

_MAX_NEW_TOKENS = 128
_AT_ONCE = 16  # a grammar that waits too long for its compilation is refused
_QUESTIONS = (
    "Please produce the record.",
    "Tell me about yourself.",
    "I met Anna in Berlin yesterday, she is 31 years old and likes chess.",
    "What is the weather in Paris?",
    "Summarize: the train was late and everybody was angry.",
    "Generate a profile for a new customer.",
    "Plan my weekend.",
    "The laptop costs 999.95 dollars and weighs 1.4 kg.",
    "Hello",
    "Fill in the form.",
)
"""Some are questions of the training, which have other answers there than objects or calls."""


def draw_request(rng: Random, number: int, temperature: float, names: Sequence[str]) -> Generate:
    """Draw a request for an object (even numbers) or a call (odd ones) of a schema that is never trained on.

    ``names`` are words that the names of properties are made of.
    """
    while not held_out(schema := draw_object(rng, names=names).schema):
        pass
    prompt = ChatPrompt((Message("user", rng.choice(_QUESTIONS)),))
    tools = (Tool("record", parameters=schema),) if number % 2 else ()
    return Generate(
        id=str(number),
        model="demo",
        prompts=(prompt,),
        tools=tools,
        tool_choice=ToolChoice("named", ("record",)) if tools else None,
        grammar=None if tools else Grammar("json_schema", schema),
        sampling=Sampling(temperature=temperature, seed=number),
        stopping=Stopping(max_new_tokens=_MAX_NEW_TOKENS),
    )


async def share_that_ends(
    folder: Path,
    count: int,
    *,
    temperature: float,
    seed: int,
    device: str = "cpu",
    names: Sequence[str] = NAMES_OF_PROPERTIES,
) -> float:
    """The share of `count` answers that end before the limit of tokens."""
    settings = {"model": str(folder), "engine": "inprocess", "threads": 1, "device": device, "text_only": True}
    backend = NativeBackend("native", settings)
    await backend.start()
    rng = Random(f"{seed}:schemas")
    requests = [draw_request(rng, number, temperature, names) for number in range(count)]
    try:
        slots = asyncio.Semaphore(_AT_ONCE)
        answers = await asyncio.gather(*(_reason(backend, request, slots) for request in requests))
    finally:
        await backend.aclose()
    return sum(reason is not FinishReason.LENGTH for reason in answers) / count


async def _reason(backend: NativeBackend, request: Generate, slots: asyncio.Semaphore) -> FinishReason:
    async with slots:
        events = [event async for batch in backend.generate(request) for event in batch]
    return fold(tuple(events)).choices[0].reason


def main() -> None:
    """The command line; prints a Markdown table."""
    parser = argparse.ArgumentParser(description="Measure how often structured outputs of a checkpoint end.")
    parser.add_argument("folder", type=Path, nargs="?", default=WEIGHTS)
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="such as cuda")
    options = parser.parse_args()
    sys.stdout.write(
        f"| decoding | answers of {options.schemas} that end within {_MAX_NEW_TOKENS} tokens |\n|---|---|\n"
    )
    for name, temperature, names in (
        ("greedy", 0.0, NAMES_OF_PROPERTIES),
        ("temperature 1", 1.0, NAMES_OF_PROPERTIES),
        ("greedy, names of properties that are never trained on", 0.0, UNSEEN_PROPERTIES),
    ):
        ending = share_that_ends(
            options.folder,
            options.schemas,
            temperature=temperature,
            seed=options.seed,
            device=options.device,
            names=names,
        )
        sys.stdout.write(f"| {name} | {asyncio.run(ending):.1%} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
