"""This engine and llama-server over one GGUF file with trained weights.

llama.cpp multiplies the file's blocks as they are, by activations that it rounds to 8 bits. This engine multiplies them
by exact activations, or expands the weights when it loads them; it is measured with blocks and in each of its dtypes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from backends.native.checkpoints.layout import WEIGHTS
from backends.native.checkpoints.reference import prepare
from backends.native.engine.layers.quantized_linear import BITS
from backends.native.engine.loading.weights import load
from benchmarks.engine import Table
from benchmarks.rivals.with_llama import llama_server
from benchmarks.shapes import as_served
from benchmarks.systems import KV_TOKENS, STEP_TOKENS, System, interlingua
from benchmarks.workloads import PREFIX, Job, workloads

LLAMA = "llama-server"
# Where a CPU has AMX, llama.cpp reorders 4-bit weights for it and then ends by a general protection fault (seen with
# llama-cpp-python 0.3.36, GCC 12).
_OPTIONS = ("--no-repack",)
_NEW = 32
_QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Write one sentence about the sea.",
    "What is two plus two?",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into French.",
    "Give a synonym of 'happy'.",
    "How many days has a week?",
    "Describe a cat in five words.",
    "Why is the sky blue?",
)


def compare(model: str, binary: Path, table: Table, threads: int, folder: Path) -> None:
    """Print on how many tokens the engines agree, and the speed of each.

    Args:
        model: what `gateway serve --model` takes, if that is a GGUF file.
        binary: llama-server.
        table: measures and prints.
        threads: of each engine.
        folder: for the server's log.
    """
    checkpoint = prepare(model, print)
    file = Path(Path(checkpoint, WEIGHTS).read_text())
    plain = load(checkpoint, "float32").model
    reduced = load(checkpoint, "bfloat16").model
    blocks = load(checkpoint, "float32", keep=True).model
    ours = {
        "blocks": interlingua(as_served(blocks)),
        "float32": interlingua(as_served(plain)),
        "bfloat16": interlingua(as_served(reduced)),
    }
    ours |= {name: interlingua(as_served(reduced, bits)) for name, bits in BITS.items()}
    log = folder / f"{LLAMA}.log"
    sizes = {"threads": threads, "tokens": KV_TOKENS, "step_tokens": STEP_TOKENS}
    sized = llama_server(binary, file, log=log, more=_OPTIONS, **sizes)
    print(f"{file.name}, {plain.num_parameters() / 1e6:.0f} million parameters", flush=True)
    with sized as theirs:
        _agreement(theirs, ours, _chats(checkpoint))
        for workload, jobs in workloads(plain.config.vocab_size, scale=8).items():
            if workload != PREFIX:
                table.add(workload, jobs, {LLAMA: theirs} | ours)


def _chats(checkpoint: str) -> list[Job]:
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    chats = [[{"role": "user", "content": question}] for question in _QUESTIONS]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    return [(tokenizer(text, add_special_tokens=False)["input_ids"], _NEW) for text in texts]


def _agreement(theirs: System, ours: dict[str, System], jobs: list[Job]) -> None:
    """Print how long the greedy answers are equal."""
    expected = theirs(jobs)
    for name, system in ours.items():
        found = system(jobs)
        equal = [_common(one, other) for one, other in zip(expected, found, strict=True)]
        print(f"{name:28} equal for {sum(equal) / len(equal):.1f} of {_NEW} tokens, {equal.count(_NEW)} answers whole")


def _common(one: list[int], other: list[int]) -> int:
    """How many of the first tokens are equal."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
