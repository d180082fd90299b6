"""Models on two ranks, which are processes with real sockets between them: the logits and tokens of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.loading.weights import load
from backends.native.engine.parallel.gang import Gang
from backends.native.engine.parallel.runner import LeadingRunner
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.parallel.alike import BLOCK_SIZE, BLOCKS, CHECKED, TIMEOUT, check
from tests.backends.native.engine.tiny import build, plain, prompt, reference, tiny

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parents[5]
# Key heads of each rank. The plan of phi3 gathers its joined queries, keys and values, and that of gpt_oss splits
# experts only, so their attention is whole.
KEY_HEADS = {"llama": 1, "qwen3": 1, "gemma2": 1, "mistral": 1, "phi3": 2, "gpt_oss": 2, "mixtral": 1}


def test_two_ranks_give_the_logits_and_tokens_of_one(tmp_path: Path) -> None:
    for family in KEY_HEADS:
        build(family).save_pretrained(tmp_path / family)
    module = "tests.backends.native.engine.parallel.second_rank"
    second = subprocess.Popen([sys.executable, "-m", module, str(tmp_path), *KEY_HEADS], cwd=ROOT)
    gang = Gang(0, 2, tmp_path, torch.device("cpu"), TIMEOUT)
    try:
        for family, key_heads in KEY_HEADS.items():
            _check(family, load(str(tmp_path / family), ranks=2).model, gang, key_heads)
        assert second.wait() == 0
    finally:
        gang.leave()
        second.kill()
        second.wait()


def _check(family: str, share: torch.nn.Module, gang: Gang, key_heads: int) -> None:
    if family in CHECKED:
        right, damaged = check(share)
        assert right is None
        assert "gives other logits" in (damaged or "")
    runner = LeadingRunner(share, KVCache(BLOCKS, BLOCK_SIZE), gang)
    tokens = prompt(21, 5)
    sequence = Sequence(0, Submit(0, tokens, 1), 0)
    sequence.blocks.extend([7, 3, 11, 30, 2, 19])
    with torch.inference_mode():
        expected = plain(family)(torch.tensor([tokens]), use_cache=False).logits[0]
        # A prompt in chunks, and a decode.
        spans = [(0, 9), (9, 11), (20, 1)]
        found = torch.cat([runner.run([Work(sequence, start, count, samples=True)]) for start, count in spans])
    ends = [start + count - 1 for start, count in spans]
    error, scale = float((found - expected[ends]).abs().max()), float(expected.abs().max())
    assert error <= 1e-5 * scale, (family, error, scale)
    pools = runner.cache.layer(0, found, found)
    assert pools.keys.shape[1] == pools.values.shape[1] == key_heads, family

    requests = [Submit(seq, prompt(5 + 3 * seq, seq), 10) for seq in range(3)]
    answers = tiny(runner, blocks=BLOCKS, size=BLOCK_SIZE).answers(requests, apart=2)
    for request in requests:
        assert answers[request.seq].ids == reference(family, request.prompt, 10).ids, family
    runner.sleep()  # with which the second rank goes on to the next model
