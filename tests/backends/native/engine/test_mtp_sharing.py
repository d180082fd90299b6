"""Drafts by a model's MTP layer where it runs seldom, shares blocks, and meets other options: they stay right."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path

import pytest
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from backends.native.engine import mtp_drafts
from backends.native.engine.mtp_drafts import MtpDrafts
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.lora.folders import save as save_adapter
from tests.backends.native.engine.test_draft_model import Eager
from tests.backends.native.engine.test_exact_speculation import assert_same, requests
from tests.backends.native.engine.test_mtp_drafts import (
    BLOCK,
    KINDS,
    LARGE,
    SMALL,
    Reference,
    engine_of,
    recording,
    run,
    write,
    wrong,
)
from tests.backends.native.engine.tiny import Answer, Tiny, prompt

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return {kind: write(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


class Seldom(Eager):
    """Asks for drafts in every seventh step: what the layer was not run over piles up."""

    step = 0

    def plan(self, running: Seq[Sequence]) -> None:
        self.step += 1
        super().plan(running if self.step % 7 == 0 else [])


def seldom(tiny: Tiny) -> None:
    assert tiny.engine._speculation is not None
    tiny.engine._speculation = Seldom(tiny.engine._speculation.source)


@pytest.mark.parametrize("most", [12, 128])
@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
def test_predictions_behind_what_has_piled_up(
    sizes: Mapping[str, int], most: int, folders: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mtp_drafts, "_MOST_KEPT", most)
    tiny, source = run(folders["glm4_moe"], sizes, seldom)
    assert tiny.scheduler.preemptions if sizes is SMALL else tiny.scheduler.prefix_hits
    assert len(source.predicted) > 40
    assert wrong(source, Reference(folders["glm4_moe"])) == 0


class Late(Eager):
    """Asks for drafts of later sequences alone."""

    def plan(self, running: Seq[Sequence]) -> None:
        super().plan([sequence for sequence in running if sequence.request.seq >= 100])


@pytest.mark.parametrize("too_soon", [False, True])
def test_blocks_that_the_layer_was_not_run_over_are_not_shared(
    too_soon: bool, folders: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = MtpDrafts.follow

    def follow_and_share(self: MtpDrafts, works: Seq[Work], chosen: Seq[Seq[int]]) -> None:
        follow(self, works, chosen)
        for work in works:
            work.sequence.stored = sys.maxsize

    if too_soon:
        monkeypatch.setattr(MtpDrafts, "follow", follow_and_share)
    tiny = engine_of(folders["deepseek_v3"])
    assert tiny.engine._speculation is not None
    tiny.engine._speculation = Late(tiny.engine._speculation.source)
    source, first = recording(tiny, {}), prompt(10, 0)
    answers = {0: Answer(), 100: Answer()}
    tiny.engine.submit(0, Submit(0, first, 60))
    for _ in range(30):
        tiny.take(answers)
    tokens = (*first, *answers[0].ids)
    tiny.engine.cancel(0, 0)
    tiny.engine.submit(0, Submit(100, tokens, 8))
    while tiny.engine.busy:
        tiny.take(answers)
    # Of the blocks that a prefix finds the last is computed again.
    assert tiny.scheduler.prefix_hits == ((len(tokens if too_soon else first) - 1) // BLOCK - 1) * BLOCK
    assert len(source.predicted) > 5
    assert bool(wrong(source, Reference(folders["deepseek_v3"]))) is too_soon


def test_the_layer_is_run_over_the_rest_of_a_sequence_at_its_end(folders: Mapping[str, str]) -> None:
    tiny = engine_of(folders["deepseek_v3"])
    assert tiny.engine._speculation is not None
    tiny.engine._speculation = Late(tiny.engine._speculation.source)
    source, first = recording(tiny, {}), prompt(10, 0)
    ids = tiny.answers([Submit(0, first, 60)])[0].ids
    tiny.answers([Submit(100, (*first, *ids), 8)])
    assert tiny.scheduler.prefix_hits > 60
    assert len(source.predicted) > 5
    assert wrong(source, Reference(folders["deepseek_v3"])) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_the_same_over_keys_and_values_in_8_bits(kind: str, folders: Mapping[str, str]) -> None:
    asked, more = requests(8, 20), {"kv_cache_dtype": "int8"}
    expected = engine_of(folders[kind], "", **more).answers(asked)
    tiny = engine_of(folders[kind], **more)
    source = recording(tiny, {seq: answer.ids for seq, answer in expected.items()})
    assert_same(tiny.answers(asked), expected)
    speculation = tiny.engine._speculation
    assert speculation is not None
    assert 0.2 < speculation.accepted / speculation.drafted < 0.9
    # The layer's own are rounded, too: nearly all of its predictions are those of exact ones.
    reference = Reference(folders[kind])
    same = [
        int(logits.argmax()) == int(reference.logits(tokens, known).argmax())
        for (tokens, known), logits in list(source.predicted.items())[::4]
    ]
    assert sum(same) > 0.8 * len(same) > 10


def test_texts_of_lora_adapters_are_the_same(folders: Mapping[str, str], tmp_path: Path) -> None:
    folder = folders["glm4_moe"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    adapters = {"a": str(save_adapter(tmp_path / "a", model, r".*(q_proj|o_proj)", 1))}
    asked = [replace(one, lora_adapter="a" if one.seq % 2 else "") for one in requests(8, 20)]
    bare = engine_of(folder, "").answers(requests(8, 20))
    expected = engine_of(folder, "", lora_adapters=adapters).answers(asked)
    assert all((expected[seq].ids == bare[seq].ids) is not bool(seq % 2) for seq in expected)
    tiny = engine_of(folder, lora_adapters=adapters)
    recording(tiny, {seq: answer.ids for seq, answer in expected.items()})
    assert_same(tiny.answers(asked), expected)
    assert tiny.engine._speculation is not None
    assert tiny.engine._speculation.accepted > 20
