"""Steps that overlap: each sequence gets what it gets alone on the CPU, and faults of the overlap are noticed."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from backends.native.engine import loop, overlap
from backends.native.engine.devices import ExtraArrays, default_device, send
from backends.native.engine.loop import Engine
from backends.native.engine.overlap import Launched, can_overlap
from backends.native.engine.runner.pack import pack_of
from backends.native.engine.sampling import logits_processors
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Cancel, SamplingParams, Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.device import PretendedDevice
from tests.backends.native.engine.pretended.engines import (
    SAMPLING,
    accelerator,
    assert_same,
    counted,
    drive,
    load,
    save,
    wide,
)
from tests.backends.native.engine.tiny import ADAPTED, CONTEXT, FAMILIES, VOCAB, Answer, Tiny, prompt, tiny

pytestmark = [pytest.mark.torch, needs_compiler]

BLOCKS, SIZE = 18, 4
POISON = 13  # its logits are no numbers
FAULT = 11  # running it fails


class PagedSums:
    """A runner with a paged cache on its device, whose logits depend on all tokens of a sequence in their order."""

    execution_path = "packed"
    lora_adapters: tuple[str, ...] = ()
    states: None = None
    speculates = True
    image_tokens = 0
    unchunked = "nothing"

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.takes_extra = self.overlaps = device != "cpu"
        # One slot more, of zeros, for what lies behind shorter sequences.
        self.cache = torch.zeros(BLOCKS * SIZE + 1, dtype=torch.int64).to(self.device)
        self.factors = torch.arange(1, CONTEXT + 1).to(self.device)
        self.vocabulary = torch.arange(VOCAB).to(self.device)
        self.forgotten: list[int] = []

    def run(self, works: Seq[Work], extra: ExtraArrays | None = None) -> Tensor:
        """See `packed.Runner`."""
        if any(FAULT in work.sequence.request.prompt for work in works):
            raise RuntimeError("a fault")
        pack = pack_of(works, SIZE)
        context = array("q")
        for work in works:
            for end in range(work.start + work.count - work.wanted + 1, work.start + work.count + 1):
                slots = [work.sequence.blocks[place // SIZE] * SIZE + place % SIZE for place in range(end)]
                context.extend(slots + [BLOCKS * SIZE] * (CONTEXT - end))
        ids, slots, read, *sent = send(self.device, pack.ids, pack.slots, context, *(extra.arrays if extra else ()))
        if extra is not None:
            extra.sent = sent
            extra.fill_in(ids)
        self.cache.index_copy_(0, slots, ids)
        seen = self.cache.index_select(0, read).view(-1, CONTEXT)
        sums = (seen * self.factors).sum(-1, keepdim=True)
        logits = ((sums % 97 + self.vocabulary) * (self.vocabulary + 3) % 31).float() / 6
        return torch.where((seen == POISON).any(-1, keepdim=True), torch.nan, logits)

    def forget(self, sequence: Sequence) -> None:
        """See `packed.Runner`."""
        self.forgotten.append(sequence.request.seq)


def engine_on(device: str) -> Tiny:
    runner = PagedSums(device)
    overlaps = can_overlap(runner, runner.device)  # type: ignore[arg-type]
    assert overlaps == (device != "cpu")
    return tiny(runner, blocks=BLOCKS, size=SIZE, step_tokens=20, max_sequences=6, overlaps=overlaps)  # type: ignore[arg-type]


KINDS: list[dict[str, Any]] = [
    {},
    {"sampling": SAMPLING["sampled"]},
    {"sampling": SAMPLING["top_k and top_p"]},
    {"sampling": SamplingParams(logit_bias=((7, 2.0),)), "min_new_tokens": 6},
    {"sampling": SAMPLING["penalties"]},
    {"sampling": SamplingParams(repetition_penalty=1.4, frequency_penalty=0.7, temperature=0.9, seed=8)},
    {"priority": 1},
]
ON_THE_HOST: list[dict[str, Any]] = [
    {"sampling": SamplingParams(temperature=1.0, seed=5, watermark=True)},
    {"top_logprobs": 1},
    {"prompt_logprobs": 0},
]


def request(draw: random.Random, seq: int) -> Submit:
    """Some prompts begin alike; some requests end by a token, some need the host in each step, some fail."""
    tokens = prompt(12, 0)[: draw.choice((0, 8, 12))] + tuple(
        draw.randrange(14, VOCAB) for _ in range(draw.randint(1, 9))
    )
    if draw.random() < 0.06:
        tokens += (draw.choice((POISON, FAULT)),)
    ends = (30, 31, 60, 61, 90) if draw.random() < 0.6 else ()
    kind = draw.choice(ON_THE_HOST if draw.random() < 0.1 else KINDS)
    return Submit(seq, tokens, draw.choice((0, 1, 2, 20, 30, 30)), eos_token_ids=ends, **kind)


def check(seed: int, requests: int = 20) -> tuple[int, int]:
    """Random arrivals, cancels and preemptions: each sequence gets what it gets alone on the CPU.

    Returns:
        How many steps were launched before another was read, and how many preemptions there were.
    """
    draw = random.Random(seed)
    here, ahead = engine_on(default_device().type), 0
    asked: list[Submit] = []
    found: dict[int, Answer] = {}
    cancelled: set[int] = set()
    while here.engine.busy or len(asked) < requests:
        if len(asked) < requests and draw.random() < 0.5:
            asked.append(request(draw, len(asked)))
            found[asked[-1].seq] = Answer()
            here.engine.handle(0, asked[-1])
        running = [seq for seq, answer in found.items() if not answer.ended and seq not in cancelled]
        if running and draw.random() < 0.02:
            cancelled.add(seq := draw.choice(running))
            here.engine.handle(0, Cancel(seq))
        before = here.engine._launched
        here.take(found)
        ahead += before is not None and here.engine._launched is not None
        here.scheduler.pool.check()
    assert here.scheduler.pool.free == here.scheduler.pool.count
    for each in asked:
        alone, mine = engine_on("cpu").answers([each])[each.seq], found[each.seq]
        if each.seq in cancelled:
            assert mine.ids == alone.ids[: len(mine.ids)], f"cancelled sequence {each.seq}"
        else:
            assert (mine.ids, mine.reason, mine.error) == (alone.ids, alone.reason, alone.error), f"sequence {each.seq}"
            assert len(mine.logprobs + list(mine.prompt)) == len(alone.logprobs + list(alone.prompt))
    return ahead, len(here.preemptions)


@pytest.fixture
def device() -> Iterator[PretendedDevice]:
    with PretendedDevice() as device:
        yield device


@pytest.mark.parametrize("seed", [3, 7])
def test_tokens_are_those_of_each_sequence_alone_on_the_cpu(seed: int) -> None:
    with accelerator():
        ahead, preempted = check(seed)
    assert ahead > 20
    assert preempted


@counted
def test_where_steps_do_not_overlap(device: PretendedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise NotImplementedError("the device has no streams")

    runner: Any = PagedSums("cuda")
    assert can_overlap(runner, runner.device)
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr("torch.accelerator.current_stream", none)
        assert not can_overlap(runner, runner.device)
    assert [(each["event"], each["why"]) for each in logs] == [("overlap.not_used", "the device has no streams")]
    monkeypatch.setenv(overlap.VARIABLE, "0")
    assert not can_overlap(runner, runner.device)


def _read_too_early(patch: pytest.MonkeyPatch) -> None:
    def results(self: Launched) -> list[tuple[Work, int | None]]:
        tokens = iter(self.copied.tolist())
        return [(work, next(tokens) if work.samples else None) for work in self.works]

    patch.setattr(Launched, "results", results)


def _one_buffer_for_all_steps(patch: pytest.MonkeyPatch) -> None:
    buffer = torch.empty(64, dtype=torch.int64, pin_memory=True)

    def copied_late(numbers: Tensor) -> tuple[Tensor, Any]:
        copied = buffer[: len(numbers)].copy_(numbers, non_blocking=True)
        return copied, torch.accelerator.current_stream(numbers.device).record_event()

    patch.setattr(overlap, "_copied_late", copied_late)


def _an_event_before_the_copy(patch: pytest.MonkeyPatch) -> None:
    def copied_late(numbers: Tensor) -> tuple[Tensor, Any]:
        event = torch.accelerator.current_stream(numbers.device).record_event()
        return torch.empty(len(numbers), dtype=torch.int64, pin_memory=True).copy_(numbers, non_blocking=True), event

    patch.setattr(overlap, "_copied_late", copied_late)


def _ended_sequences_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_has", lambda *_: True)


def _tokens_that_were_not_filled_in(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExtraArrays, "fill_in", lambda *_: None)


def _tokens_of_other_rows(patch: pytest.MonkeyPatch) -> None:
    def with_rows_reversed(runner: Any, works: Any, before: Launched | None) -> Launched | None:
        if before is not None:
            before.chosen = before.chosen.flip(0)
        return overlap.launch(runner, works, before)

    patch.setattr(loop, "launch", with_rows_reversed)


def _a_token_that_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(logits_processors, "_with_unread", lambda owner, token, counts, *_: (owner, token, counts))


@counted
@pytest.mark.parametrize(
    "mutation",
    [
        _a_token_that_is_not_counted,
        _read_too_early,
        _one_buffer_for_all_steps,
        _an_event_before_the_copy,
        _ended_sequences_go_on,
        _tokens_that_were_not_filled_in,
        _tokens_of_other_rows,
    ],
)
def test_it_notices(mutation: Callable[[pytest.MonkeyPatch], None], device: PretendedDevice) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        with pytest.raises((AssertionError, KeyError, IndexError)):
            check(3, requests=10)


@wide
@pytest.mark.parametrize("family", [*FAMILIES, *ADAPTED])
def test_every_family(family: str, tmp_path: Path) -> None:
    kinds = ("greedy", "sampled", "top_k and top_p")
    ends = (5, 6, 7, 30, 31, 32)
    asked = [
        Submit(seq, prompt(7 + 9 * seq, seq), 12, SAMPLING[kinds[seq % 3]], eos_token_ids=ends) for seq in range(5)
    ]
    folder = save(family, tmp_path / family)
    expected = drive(load(folder, "cpu", execution_path="packed")[0], asked)
    with accelerator() as device:
        assert_same(drive(load(folder, "auto", execution_path="packed", step_tokens=32)[0], asked), expected)
        assert device is None or sum(times for (why, _), times in device.trace.waits.items() if why == "an event") > 4
