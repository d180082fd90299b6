"""Drafts by a smaller model: the tokens stay the same, whatever it writes, and like models draw the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from backends.native.demo import WEIGHTS
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.draft_model import DraftModel, why_not_alike
from backends.native.engine.errors import LoadError
from backends.native.engine.factory import load_engine
from backends.native.engine.loop import Engine
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.block_pool import BlockPool
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.scheduling.speculation import Speculation, StepCosts
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import SamplingParams, Submit
from tests.backends.native.engine.test_exact_speculation import assert_same, ran, requests
from tests.backends.native.engine.tiny import CONTEXT, VOCAB, build, packed_runner, prompt, tiny

pytestmark = pytest.mark.torch


class Eager(Speculation):
    """Asks the smaller model for up to five drafts of each sequence, whether that pays or not."""

    def _find(self, sequence: Sequence, most: int) -> tuple[list[int], list[float]]:
        return [], []

    def plan(self, running: Seq[Sequence]) -> None:
        assert self.source is not None
        self._costs = self.source.costs = StepCosts()
        for rate in (self._source_rate, *(drafter.source_rate for drafter in self._drafters.values())):
            rate.right = rate.tried = 1e6
        super().plan(running)


class Timed(Speculation):
    """For which a step takes two milliseconds, and a further row a tenth of that."""

    def time(self, works: Iterable[Work], seconds: float) -> None:
        works = list(works)
        super().time(works, 2e-3 + 2e-4 * (sum(work.count for work in works) - 1))


def drafting(model: torch.nn.Module, blocks: int = 400, **given: int) -> DraftModel:
    sizes = {"step_tokens": 64, "vocab_size": VOCAB, "context_length": CONTEXT} | given
    runner = PackedRunner(model, KVCache(blocks, 4))
    return DraftModel(runner, BlockPool(blocks, 4, caching=False), **sizes)


def perturbed(by: float) -> torch.nn.Module:
    """The model with noise in its weights: it draws other tokens now and then."""
    model = build("llama")
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * parameter.std(unbiased=False), alpha=by)
    return model


@pytest.mark.parametrize("by", [0.0, 0.05])
def test_tokens_are_those_without_it(by: float) -> None:
    asked = requests(10, 24)
    expected = ran("llama", asked, None)
    speculation = Eager(source := drafting(perturbed(by)))
    assert_same(ran("llama", asked, speculation, apart=1), expected)
    assert speculation.drafted > 100
    share = speculation.accepted / speculation.drafted
    # The same model draws the same tokens, sampled or not: its drafts have the same noise.
    assert share > 0.99 if by == 0 else 0.2 < share < 0.99
    assert source._pool.free == source._pool.count
    assert not source._shadows


@pytest.mark.parametrize("given", [{"blocks": 14}, {"step_tokens": 7}, {"vocab_size": 60}, {"context_length": 30}])
def test_what_it_cannot_follow_gets_no_drafts_and_the_same_tokens(given: dict[str, int]) -> None:
    asked = requests(6, 20)
    expected = ran("llama", asked, None)
    speculation = Eager(drafting(build("llama"), **given))
    assert_same(ran("llama", asked, speculation), expected)
    assert speculation.accepted


def test_preempted_sequences_keep_their_drafts() -> None:
    asked = requests(8, 40)
    expected = ran("llama", asked, None)
    speculation = Eager(drafting(build("llama")))
    assert_same(ran("llama", asked, speculation, blocks=36), expected)
    assert speculation.accepted


def test_one_that_fails_is_given_up() -> None:
    class Failing(DraftModel):
        def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
            raise RuntimeError("out of order")

    asked = requests(3, 12)
    runner = PackedRunner(build("llama"), KVCache(8, 4))
    failing = Failing(runner, BlockPool(8, 4), step_tokens=8, vocab_size=VOCAB, context_length=CONTEXT)
    speculation = Speculation(failing)
    assert_same(ran("llama", asked, speculation), ran("llama", asked, None))
    assert speculation.source is None


def test_one_whose_drafts_are_wrong_is_asked_seldom() -> None:
    class Wrong(DraftModel):
        asked = 0

        def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
            self.asked += 1
            self.costs.add(len(wanted), 1e-3)  # half of a step
            return {sequence: [VOCAB - 1] * most for sequence, most in wanted.items()}

    runner = PackedRunner(build("llama"), KVCache(8, 4))
    wrong = Wrong(runner, BlockPool(8, 4), step_tokens=8, vocab_size=VOCAB, context_length=CONTEXT)
    t = tiny(packed_runner("llama", 64), speculation=Timed(wrong))
    steps = 0
    for seq in range(4):
        t.engine.submit(0, Submit(seq, prompt(9, seq), 100, SamplingParams(temperature=2.0, seed=seq)))
        while t.engine.busy:
            t.engine.step()
            steps += 1
    assert steps > 300
    assert wrong.asked < steps / 10


def test_the_bundled_model_drafts_for_itself() -> None:
    options = EngineOptions(str(WEIGHTS), device="cpu", threads=1, kv_tokens=4096)
    request = Submit(0, (5, 6, 7, 8), 40, SamplingParams(temperature=0.8, seed=1))
    found = []
    for draft_model in ("", str(WEIGHTS)):
        engine, _ = load_engine(replace(options, draft_model=draft_model), lambda _: None)
        assert isinstance(engine, Engine)
        ids: list[int] = []
        for _ in range(2):
            engine.handle(0, request)
            while engine.busy:
                ids += [token for step in engine.step().values() for output in step.outputs for token in output.ids]
            engine.sleep()
            engine.wake()
        found.append(ids)
    assert found[0] == found[1]
    assert engine._speculation is not None
    assert engine._speculation.accepted


def test_other_vocabularies_and_models_that_write_nothing_are_refused(tmp_path: Path) -> None:
    assert why_not_alike(str(WEIGHTS), str(WEIGHTS)) is None
    build("mamba").save_pretrained(tmp_path / "mamba")
    build("llama").save_pretrained(tmp_path / "llama")
    options = EngineOptions(str(tmp_path / "llama"), device="cpu", threads=1, kv_tokens=256)
    with pytest.raises(LoadError, match="must run packed, without recurrent states"):
        load_engine(replace(options, draft_model=str(tmp_path / "mamba")), lambda _: None)
    with pytest.raises(LoadError, match="verifies no drafts"):
        load_engine(
            replace(options, model=str(tmp_path / "mamba"), draft_model=str(tmp_path / "llama")), lambda _: None
        )
