"""The worst step, run at load: the most memory that a step can hold beside weights and KV cache.

It has as many tokens, sequences and logits as a step can have, with the parameters of sampling that need most, over one
block of the cache. With images the encoder cache is full of the largest ones, and one more is in the encoder. The KV
cache then gets no memory that such a step needs.
"""

from __future__ import annotations

from typing import Any

import torch
from msgspec.structs import replace

from backends.native.engine.multimodal.peak_memory import peak_memory
from backends.native.engine.runner.embedder import Embedder
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.sampling.sampler import sample
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.state.pool import StatePool
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Feature, SamplingParams, Submit

# The sampling parameters that need most memory for a row of logits.
_SAMPLING = SamplingParams(
    temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, typical_p=0.9, repetition_penalty=1.1, presence_penalty=0.1
)
_TOP_LOGPROBS = 20


def step_memory(
    model: Any, probe: PackedRunner, embedder: Embedder | None, options: EngineOptions, context: int
) -> int:
    """Measure the most bytes that a step holds beside weights and KV cache.

    The embeddings of the dummy images stay in the encoder cache until others need the room.

    Args:
        model: as it will be run, with its layers replaced.
        probe: a runner over a single block, to which all tokens are written here.
        embedder: of the model, with its largest image; None: the step is of text alone.
        options: how many tokens and sequences a step may have.
        context: tokens of the longest sequence.
    """
    runner = PackedRunner(model, probe.cache, embedder=embedder)
    with torch.inference_mode(), peak_memory(model.device) as peak:
        kept = None if embedder is None else _fill(embedder)
        for sequences in (1, options.max_sequences):
            works = _worst_works(embedder, options, context, sequences)
            if runner.states is not None:
                _pretend_states(runner.states, works)
            sample(works, runner.run(works).nan_to_num_())  # most of the block has never been written
            if embedder is not None and kept is not None:
                # One more image, while the sequences' histories are alive, and parts of others, which the cache may
                # have let go, for each token of the step.
                parts = kept.new_empty(sum(work.count for work in works), *kept.shape[1:])
                embedder.encode(_renamed(_largest(embedder), 1_000_000 + sequences))
                del parts
            for work in works:
                runner.forget(work.sequence)
        del kept
    return peak.bytes


def _fill(embedder: Embedder) -> torch.Tensor:
    """Fill the encoder cache to its bound, and have one more image made; what smaller images may take of the rest."""
    largest = _largest(embedder)
    full, left = divmod(embedder.capacity, largest.length)
    for number in range(full + 2):
        made = embedder.encode(_renamed(largest, number))
    return made.new_empty(left, *made.shape[1:])


def _largest(embedder: Embedder) -> Feature:
    assert embedder.worst is not None
    return embedder.worst


def _pretend_states(states: StatePool, works: list[Work]) -> None:
    """Have the pool take its zeros for the states of the tokens before `works`, which were never run."""
    for work in works:
        before = states.lacking(work)
        if before is not None:
            states.commit([before])


def _worst_works(embedder: Embedder | None, options: EngineOptions, context: int, sequences: int) -> list[Work]:
    """The works of a worst step.

    The first is the end of a longest prompt, made of images if there are any, all of its logits requested. Each of the
    others has its last two tokens, if the step has room: for a single token attention may need less memory.
    """
    budget = max(options.step_tokens, options.max_sequences)
    each = min(2, budget // options.max_sequences, context)
    chunk = min(budget - each * (sequences - 1), context)
    prompt = (0,) * context
    features = () if embedder is None else _features(_largest(embedder), chunk, context)
    submit = Submit(0, prompt, 1, _SAMPLING, top_logprobs=_TOP_LOGPROBS)
    scored = Submit(0, prompt, 1, _SAMPLING, prompt_logprobs=_TOP_LOGPROBS, features=features)
    blocks = [0] * -(-context // options.block_size)
    works = []
    for arrival in range(sequences):
        sequence = Sequence(0, submit if arrival else scored, arrival)
        sequence.blocks.extend(blocks)
        tokens = each if arrival else chunk
        works.append(Work(sequence, context - tokens, tokens, samples=True))
    return works


def _features(largest: Feature, chunk: int, context: int) -> tuple[Feature, ...]:
    """Images one after the other at the end of a prompt of `context` tokens, of which the last `chunk` are run."""
    spacing = largest.length + 1
    count = min(chunk // spacing + 2, context // spacing)
    places = range(context - count * spacing, context - 1, spacing)
    return tuple(replace(_renamed(largest, number), offset=place) for number, place in enumerate(places))


def _renamed(feature: Feature, number: int) -> Feature:
    """A copy that counts as another image."""
    return replace(feature, identifier=feature.identifier + number.to_bytes(4, "big"))
