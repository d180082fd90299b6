"""Decode steps from graphs on the pretended device: the tokens of the CPU, and what cannot be captured is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends.native.engine.runner import graphs
from backends.native.engine.runner.graphs import DecodeGraphs, DecodeInputs
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.device import PretendedDevice
from tests.backends.native.engine.pretended.engines import SAMPLING, assert_same, counted, drive, load, save, wide
from tests.backends.native.engine.pretended.kernels import pretend_triton
from tests.backends.native.engine.tiny import prompt

pytestmark = [pytest.mark.torch, pytest.mark.slow, needs_compiler, counted]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    with PretendedDevice() as device:
        monkeypatch.setattr(graphs, "capture_on_cuda", device.capture)
        yield device


def asked() -> list[Submit]:
    """Three sequences that end one after the other, so that batches are padded; contexts cross two widths of tables."""
    kinds = ("bias and watermark", "greedy", "penalties")  # the first needs the host in each step, the others overlap
    return [Submit(seq, prompt(12 + 9 * seq, seq), 5 + 3 * seq, SAMPLING[kind]) for seq, kind in enumerate(kinds)]


def replays(device: PretendedDevice) -> int:
    return sum(number for (name, _), number in device.trace.kernels.items() if name == "replay")


@pytest.mark.parametrize("cache", ["auto", pytest.param("int8", marks=wide)])
def test_tokens_are_those_of_the_cpu(
    cache: str, folder: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_triton(monkeypatch, device)
    engine, _ = load(folder, "cuda", execution_path="packed", kv_cache_dtype=cache)
    found = drive(engine, asked())
    assert replays(device) >= 10
    assert_same(found, drive(load(folder, "cpu", execution_path="packed", kv_cache_dtype=cache)[0], asked()))


@wide
def test_what_reads_lengths_on_the_host_runs_without_graphs(folder: Path, device: PretendedDevice) -> None:
    """The reference's attention does."""
    engine, _ = load(folder, "cuda", execution_path="packed")
    found = drive(engine, asked())
    assert not replays(device)
    assert_same(found, drive(load(folder, "cpu", execution_path="packed")[0], asked()))


@wide
def test_a_graph_with_other_logits_is_not_used(
    folder: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_triton(monkeypatch, device)

    def wrong(step: Any) -> Any:
        replay, logits = device.capture(step)
        return lambda: (replay(), logits.mul_(1.1)), logits

    monkeypatch.setattr(graphs, "capture_on_cuda", wrong)
    engine, _ = load(folder, "cuda", execution_path="packed")
    found = drive(engine, asked())
    assert replays(device) == 1  # at load, to compare
    assert_same(found, drive(load(folder, "cpu", execution_path="packed")[0], asked()))


@wide
def test_inputs_that_stay_where_they_were_give_wrong_tokens(
    folder: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_triton(monkeypatch, device)
    expected = drive(load(folder, "cuda", execution_path="packed")[0], asked())
    run = DecodeGraphs.run
    first: dict[int, DecodeInputs] = {}

    def stale(self: DecodeGraphs, given: DecodeInputs, *more: Any) -> Any:
        return run(self, first.setdefault(len(given.tokens), given), *more)

    monkeypatch.setattr(DecodeGraphs, "run", stale)
    found = drive(load(folder, "cuda", execution_path="packed")[0], asked())
    assert any(found[seq].ids != expected[seq].ids for seq in expected)
