"""The packed runner: what a pack holds, which rows of it are wanted, and where its tokens go in the cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from backends.native.engine.attention.interface import AttentionMetadata, AttentionParams
from backends.native.engine.attention.kv_cache import KVCache, LayerCache
from backends.native.engine.attention.reference import reference_kernel
from backends.native.engine.runner.pack import wanted_rows
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.tiny import build, plain, prompt

pytestmark = pytest.mark.torch

BLOCK = 4


def sequence(length: int, blocks: list[int], **options: Any) -> Sequence:
    found = Sequence(0, Submit(length, prompt(length, length), 1, **options), 0)
    found.blocks.extend(blocks)
    return found


def expected(tokens: list[int]) -> Tensor:
    """The model's own logits, [tokens, vocabulary]."""
    with torch.inference_mode():
        logits: Tensor = plain("llama")(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


class Watched:
    """The reference kernel, and the metadata of the steps that it ran in."""

    def __init__(self) -> None:
        self.steps: list[AttentionMetadata] = []

    def __call__(
        self, queries: Tensor, cache: LayerCache, block_size: int, metadata: AttentionMetadata, params: AttentionParams
    ) -> Tensor:
        if not self.steps or self.steps[-1] is not metadata:
            self.steps.append(metadata)
        return reference_kernel(queries, cache, block_size, metadata, params)


@pytest.fixture
def kernel() -> Watched:
    return Watched()


@pytest.fixture
def runner(kernel: Watched) -> PackedRunner:
    return PackedRunner(build("llama"), KVCache(16, BLOCK), kernel)


@torch.inference_mode()
def test_a_chunk_of_a_prompt_beside_a_token_in_decode(runner: PackedRunner, kernel: Watched) -> None:
    first, second = sequence(9, [7, 2, 5]), sequence(6, [0, 3])
    assert runner.run([Work(first, 0, 8, samples=False)]).shape[0] == 0
    logits = runner.run([Work(second, 0, 5, samples=False), Work(first, 8, 1, samples=True)])
    torch.testing.assert_close(logits, expected(first.tokens)[8:], atol=1e-4, rtol=1e-4)
    metadata = kernel.steps[-1]
    assert (metadata.query_lengths, metadata.context_lengths) == ([5, 1], [5, 9])
    assert metadata.slots.tolist() == [0, 1, 2, 3, 3 * BLOCK, 5 * BLOCK]
    assert metadata.block_tables.tolist() == [[0, 3, 0], [7, 2, 5]], "the shorter table is padded with block 0"


@torch.inference_mode()
def test_a_step_may_be_run_again(runner: PackedRunner) -> None:
    works = [Work(sequence(9, [1, 2, 3]), 0, 9, samples=True)]
    assert torch.equal(runner.run(works), runner.run(works))


@torch.inference_mode()
def test_a_prompt_that_is_scored_gives_all_its_rows(runner: PackedRunner) -> None:
    scored, other = sequence(6, [4, 5], prompt_logprobs=0), sequence(5, [1, 2])
    logits = runner.run([Work(other, 0, 5, samples=True), Work(scored, 0, 6, samples=True)])
    assert logits.shape[0] == 1 + 6
    torch.testing.assert_close(logits[1:], expected(scored.tokens), atol=1e-4, rtol=1e-4)


def test_wanted_rows_are_the_last_of_each_work() -> None:
    plain_one, scored = sequence(9, []), sequence(6, [], prompt_logprobs=0)
    decode = [Work(plain_one, 8, 1, samples=True), Work(scored, 5, 1, samples=True)]
    assert wanted_rows(decode).tolist() == [0, 1]
    mixed = [
        Work(plain_one, 0, 4, samples=False),
        Work(scored, 0, 3, samples=False),
        Work(plain_one, 4, 5, samples=True),
    ]
    assert wanted_rows(mixed).tolist() == [4, 5, 6, 11]
