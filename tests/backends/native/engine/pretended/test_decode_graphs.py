"""Decode steps from graphs on the pretended device: the tokens of the CPU, and what cannot be captured is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from backends.native.engine import devices
from backends.native.engine.attention import accelerated
from backends.native.engine.layers.int8_linear import Int8Linear
from backends.native.engine.layers.quantized_linear import plain_linears
from backends.native.engine.loading import weights
from backends.native.engine.runner import graphs
from backends.native.engine.runner.graphs import DecodeGraphs, DecodeInputs
from backends.native.engine.runner.packed import PackedRunner
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.lora.folders import TARGETS
from tests.backends.native.engine.lora.folders import save as save_lora
from tests.backends.native.engine.pretended import kernels
from tests.backends.native.engine.pretended.device import PretendedDevice
from tests.backends.native.engine.pretended.engines import (
    SAMPLING,
    WIDE,
    assert_same,
    counted,
    drive,
    load,
    save,
    spoil_pages,
    wide,
)
from tests.backends.native.engine.pretended.graph import CheckedCapture, checked_graphs, graphs_on
from tests.backends.native.engine.pretended.kernels import pretend_triton
from tests.backends.native.engine.tiny import ADAPTED, EXPERTS, FAMILIES, build, prompt

pytestmark = [pytest.mark.torch, pytest.mark.slow, needs_compiler, counted]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    with graphs_on(monkeypatch) as device:
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


@pytest.mark.parametrize("family", (*FAMILIES, *ADAPTED, *EXPERTS) if WIDE else ("gpt_oss",))
def test_replays_are_what_the_step_does_without_a_graph(
    family: str, tmp_path: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same operations on the same memory in each step of a size, also where unused pages are NaN."""
    pretend_triton(monkeypatch, device)
    checked = CheckedCapture(device)
    monkeypatch.setattr(graphs, "capture_on_cuda", checked)
    folder = save(family, tmp_path / family)
    # What loading does with `auto` is a self-check, which takes the pretended device seconds, and fused layers.
    engine, _ = load(folder, "cuda", execution_path="packed")
    spoil_pages(engine)
    checked.replays = 0
    found = drive(engine, asked())
    assert not checked.whys
    assert checked.replays >= 10
    assert_same(found, drive(load(folder, "cpu", execution_path="packed")[0], asked()))


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


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=wide)])
def test_weights_in_8_bits(lora: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens are those of a model with the rounded weights; in float32, so that nothing else is rounded."""
    folder, rounded = save("llama", tmp_path / "llama"), build("llama")
    for parent, name, child in plain_linears(rounded):
        getattr(parent, name).weight.data = Int8Linear.of(child, torch.device("cpu")).weight
    rounded.save_pretrained(tmp_path / "rounded")
    options: dict[str, Any] = {"execution_path": "auto" if WIDE else "packed"}
    requests = asked()
    if lora:
        options["lora_adapters"] = {"first": str(save_lora(tmp_path / "first", build("llama"), TARGETS["llama"], 0))}
        requests[0] = structs.replace(requests[0], lora_adapter="first")
    expected = drive(load(tmp_path / "rounded", "cpu", **options)[0], requests)
    monkeypatch.setattr(weights, "pick_dtype", lambda *_: torch.float32)
    with checked_graphs(monkeypatch) as checked:
        engine, ready = load(folder, "cuda", dtype="int8", **options)
        assert ready.dtype == "int8"
        assert "multiply_int8" in {name for name, _ in checked.device.trace.kernels}
        assert_same(drive(engine, requests), expected)
    assert checked.replays
    assert not checked.whys


def _change_logits(patch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    own = PackedRunner._logits
    patch.setattr(PackedRunner, "_logits", lambda *given, **more: change(own(*given, **more)))


def _wait(patch: pytest.MonkeyPatch) -> None:
    _change_logits(patch, lambda logits: logits * (1.0 if logits.isfinite().all() else 2.0))


def _grid_of_lengths(patch: pytest.MonkeyPatch) -> None:
    """A kernel whose grid follows the longest context."""
    attend = accelerated._routine()
    patch.setattr(
        accelerated,
        "_routine",
        lambda: lambda *given, **options: attend(*given, **options, splits=int(given[5].raw.max()) // 8),
    )


def _temporary_that_moves(patch: pytest.MonkeyPatch) -> None:
    """A step reads what was made before it, each time elsewhere."""
    made: list[torch.Tensor] = []
    run = DecodeGraphs.run

    def remade(*given: Any) -> Any:
        made.append(torch.zeros(1, device="cuda"))
        return run(*given)

    patch.setattr(DecodeGraphs, "run", remade)
    _change_logits(patch, lambda logits: logits + (made[-1] if made else logits.new_zeros(1)))


def _unmasked_page(patch: pytest.MonkeyPatch) -> None:
    """Attention reads the whole of each sequence's last page."""
    attend = kernels._attend

    def unmasked(*raw: Any) -> None:
        attend(*raw[:6], (raw[6] + 15) // 16 * 16, *raw[7:])

    patch.setattr(kernels, "_attend", unmasked)


def _buffer_reused_too_early(patch: pytest.MonkeyPatch) -> None:
    """The pinned tensor by way of which inputs are sent is taken for the next ones at once."""

    def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        pinned = tensor.pin_memory()
        sent = pinned.to(device, non_blocking=True)
        pinned.fill_(1)
        return sent

    patch.setattr(devices, "to_device", send)


MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "a wait": (_wait, "no graph"),
    "a grid of lengths": (_grid_of_lengths, "differs"),
    "a temporary that moves": (_temporary_that_moves, "differs"),
    "an unmasked page": (_unmasked_page, "other tokens"),
    "a buffer reused too early": (_buffer_reused_too_early, "the engine failed"),
}
AFTER_LOADING = {"an unmasked page", "a buffer reused too early"}
"""Mutations that loading would notice."""


@pytest.mark.parametrize(
    "mutation",
    [pytest.param(each, marks=() if each in ("a grid of lengths", "an unmasked page") else wide) for each in MUTATIONS],
)
def test_it_is_noticed(mutation: str, folder: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_triton(monkeypatch, device)
    checked = CheckedCapture(device)
    monkeypatch.setattr(graphs, "capture_on_cuda", checked)
    requests = asked()[:2]
    expected = drive(load(folder, "cpu", execution_path="packed")[0], requests)
    mutate, sign = MUTATIONS[mutation]
    if mutation not in AFTER_LOADING:
        mutate(monkeypatch)
    engine, _ = load(folder, "cuda", execution_path="packed")
    if mutation in AFTER_LOADING:
        mutate(monkeypatch)
    spoil_pages(engine)
    checked.replays = 0
    found = drive(engine, requests)
    signs = [*checked.whys, *(each.error or "" for each in found.values())]
    signs += [] if checked.replays else ["no graph"]
    signs += ["other tokens" for seq, each in found.items() if each.ids != expected[seq].ids]
    assert any(sign in each for each in signs), signs


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
