"""Decode steps with LoRA adapters from graphs on the pretended device: the tokens of the CPU, while adapters change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.nn import functional

from backends.native.engine import factory
from backends.native.engine.loop import Engine
from backends.native.engine.lora import slots
from backends.native.engine.lora.layers import LowRank
from backends.native.engine.lora.slots import LoraSlots
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.lora import folders
from tests.backends.native.engine.lora.folders import TARGETS
from tests.backends.native.engine.pretended.engines import (
    SAMPLING,
    WIDE,
    Heard,
    assert_same,
    counted,
    drive,
    load,
    save,
    spoil_pages,
    wide,
)
from tests.backends.native.engine.pretended.graph import CheckedCapture, checked_graphs
from tests.backends.native.engine.tiny import RECURRENT, build, prompt

pytestmark = [pytest.mark.torch, pytest.mark.slow, needs_compiler, counted]

NAMES = ("a", "b", "c")
RANKS = {"a": 4, "b": 3, "c": 4}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and beside it the LoRA adapters `NAMES` and `large`, whose rank is larger."""
    root = tmp_path_factory.mktemp("llama")
    save_loras(root, "llama", RANKS | {"large": 6})
    return save("llama", root / "model")


def save_loras(root: Path, family: str, ranks: Mapping[str, int]) -> dict[str, str]:
    """Random LoRA adapters, each on layers of its own choice."""
    first, second = (f".*layers.{layer}{TARGETS[family]}" for layer in (0, 1))
    targets = {"b": second, "c": first} if family == "llama" else {}
    return {
        name: str(folders.save(root / name, build(family), targets.get(name, TARGETS[family]), seed, r=rank))
        for seed, (name, rank) in enumerate(ranks.items())
    }


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What layers can have LoRA adapters is checked elsewhere; it takes the pretended device seconds."""
    monkeypatch.setattr(factory, "why_not_adapted", lambda *_, **__: None)


def asked(*names: str) -> list[Submit]:
    """Sequences with these LoRA adapters that end one after the other, so that batches are padded."""
    kinds = ("bias and watermark", "greedy", "sampled")  # the first needs the host in each step, the others overlap
    return [
        Submit(seq, prompt(12 + 9 * seq, seq), 5 + 3 * seq, SAMPLING[kinds[seq % 3]], top_logprobs=0, lora_adapter=name)
        for seq, name in enumerate(names)
    ]


@pytest.mark.parametrize("family", TARGETS if WIDE else ("llama",))
def test_replays_are_what_the_step_does_without_a_graph(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last sequence without a LoRA adapter ends last: its steps are then those of a graph without any."""
    folder = save(family, tmp_path / family)
    options: dict[str, Any] = {
        "execution_path": "packed",
        "max_sequences": 4,
        "lora_adapters": save_loras(tmp_path, family, {"a": 4, "b": 3}),
    }
    requests = asked("a", "b", "")
    expected, without = (
        drive(load(folder, "cpu", **options)[0], each)
        for each in (requests, [replace(each, lora_adapter="") for each in requests])
    )
    assert all(expected[seq].logprobs != without[seq].logprobs for seq in (0, 1))
    with checked_graphs(monkeypatch) as checked:
        engine, _ = load(folder, "cuda", **options)
        spoil_pages(engine)
        checked.replays = 0
        assert_same(drive(engine, requests), expected)
        assert not checked.whys
        # One step of prompts, ten of decode.
        assert checked.replays >= 10 if family not in RECURRENT else not checked.replays


def test_adapters_are_loaded_and_unloaded_while_serving(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than slots; a sequence keeps the weights that it began with."""
    monkeypatch.setattr(slots, "MOST", 2)
    options: dict[str, Any] = {"execution_path": "packed", "max_sequences": 8, "lora_folder": str(llama.parent)}
    expected = change_while_serving(load(llama, "cpu", **options)[0], llama.parent, lambda: 0)[0]
    assert len({tuple(each.ids[:5]) for each in expected.values()}) == len(expected)
    with checked_graphs(monkeypatch) as checked:
        engine, _ = load(llama, "cuda", **options)
        each = checked.captures
        checked.replays = 0
        found, captures = change_while_serving(engine, llama.parent, lambda: checked.captures)
        assert_same(found, expected)
        assert not checked.whys
        assert checked.replays >= 20
    # A first one; a second slot; none for another; a larger rank; none for its end.
    assert captures == [each, each, 0, each, 0]


def change_while_serving(engine: Any, root: Path, captures: Callable[[], int]) -> tuple[dict[int, Heard], list[int]]:
    """Requests between loads and unloads; what was heard, and how many captures each change took."""
    assert isinstance(engine, Engine)
    heard: dict[int, Heard] = {}
    taken: list[int] = []

    def change(action: Callable[[], None]) -> None:
        before = captures()
        action()
        taken.append(captures() - before)

    def ask(*names: str) -> None:
        for name in names:
            seq = len(heard)
            heard[seq] = Heard()
            engine.handle(0, Submit(seq, prompt(9 + seq, seq), 12, lora_adapter=name))

    def step(times: int) -> None:
        for _ in range(times):
            hear(engine, heard)

    ask("")
    step(2)
    change(lambda: engine.loras.load("a", str(root / "a")))
    ask("a", "")
    step(3)
    change(lambda: engine.loras.load("b", str(root / "b")))
    ask("b")
    step(4)
    change(lambda: engine.loras.load("c", str(root / "c")))
    ask("c")  # beside "a" and "b": three in two slots run without a graph
    step(5)
    ask("a", "c")
    step(2)
    change(lambda: engine.loras.load("a", str(root / "large")))
    ask("a", "b")
    step(3)
    change(lambda: engine.loras.unload("a"))
    while engine.busy:
        hear(engine, heard)
    return heard, taken


def hear(engine: Engine, heard: dict[int, Heard]) -> None:
    for step in engine.step().values():
        for output in step.outputs:
            each = heard[output.seq]
            each.ids += output.ids
            each.error, each.ended = output.error, output.reason is not None


@wide
def test_sleep_and_wake(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was loaded during the sleep, too, is in the graphs of the wake-up."""
    options: dict[str, Any] = {"execution_path": "packed", "lora_folder": str(llama.parent)}
    requests = asked("a", "b", "")[1:]

    def drive_after_sleep(engine: Any) -> dict[int, Heard]:
        engine.loras.load("a", str(llama.parent / "a"))
        engine.sleep()
        engine.loras.load("b", str(llama.parent / "b"))
        with torch.inference_mode():
            engine.wake()
        return drive(engine, requests)

    expected = drive_after_sleep(load(llama, "cpu", **options)[0])
    with checked_graphs(monkeypatch) as checked:
        engine, _ = load(llama, "cuda", **options)
        checked.replays = 0
        assert_same(drive_after_sleep(engine), expected)
        assert checked.replays > 10
        assert not checked.whys


@wide
def test_if_only_steps_with_lora_cannot_be_captured(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run without graphs, and the others with theirs."""
    options: dict[str, Any] = {"execution_path": "packed", "lora_adapters": {"a": str(llama.parent / "a")}}
    requests = asked("a", "", "")
    expected = drive(load(llama, "cpu", **options)[0], requests)
    with checked_graphs(monkeypatch) as checked:
        _read_on_the_host(monkeypatch)
        engine, _ = load(llama, "cuda", **options)
        checked.replays = 0
        adapted: list[int] = []

        def count(heard: dict[int, Heard]) -> None:
            if not heard[0].ended:
                adapted.append(checked.replays)

        assert_same(drive(engine, requests, count), expected)
        assert not any(adapted)
        assert checked.replays
        assert not checked.whys


def _read_on_the_host(patch: pytest.MonkeyPatch) -> None:
    """Which slots a step needs is asked for in the middle of it."""
    own = LoraSlots.adapting

    def adapting(self: LoraSlots, found: torch.Tensor) -> Any:
        assert found.max().item() < self.count
        return own(self, found)

    patch.setattr(LoraSlots, "adapting", adapting)


def _moved(patch: pytest.MonkeyPatch) -> None:
    """A slot is filled by way of new matrices."""
    own = LoraSlots._fill

    def fill(self: LoraSlots, slot: int, name: str) -> None:
        for layer in self._layers:
            assert layer.slots is not None
            layer.slots = LowRank(layer.slots.a.clone(), layer.slots.b.clone())
        own(self, slot, name)

    patch.setattr(LoraSlots, "_fill", fill)


def _not_filled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoraSlots, "_fill", lambda *_: None)


def _taken_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoraSlots, "_free_slot", lambda *_: 0)


def _rest_of_another(patch: pytest.MonkeyPatch) -> None:
    """What an adapter of a larger rank, or with more layers, has left in a slot stays there."""
    patch.setattr(torch.Tensor, "zero_", lambda self: self)


def _not_hidden(patch: pytest.MonkeyPatch) -> None:
    """A row gets what all slots say."""

    def add_to(_: Any, product: torch.Tensor, rows: torch.Tensor, layer: Any) -> None:
        product.addmm_(functional.linear(rows, layer.slots.a), layer.slots.b)

    patch.setattr(slots._InSlots, "add_to", add_to)


MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "an index read on the host": (_read_on_the_host, "no graph"),
    "a matrix that moves": (_moved, "differs"),
    "a slot that is not filled": (_not_filled, "other tokens"),
    "a slot that is taken twice": (_taken_twice, "other tokens"),
    "the rest of another": (_rest_of_another, "other tokens"),
    "other slots that are not hidden": (_not_hidden, "other tokens"),
}


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckedCapture]:
    monkeypatch.setattr(slots, "MOST", 2)
    with checked_graphs(monkeypatch) as checked:
        yield checked


@pytest.mark.parametrize(
    "mutation",
    [pytest.param(each, marks=() if each == "a matrix that moves" else wide) for each in MUTATIONS],
)
def test_it_is_noticed(mutation: str, llama: Path, checked: CheckedCapture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three adapters in two slots, at most two of them at a time."""
    options: dict[str, Any] = {
        "execution_path": "packed",
        "lora_adapters": {name: str(llama.parent / name) for name in NAMES},
        "max_sequences": 2,
    }
    requests = asked("a", "b", "c", "a")
    expected = drive(load(llama, "cpu", **options)[0], requests)
    mutate, sign = MUTATIONS[mutation]
    mutate(monkeypatch)
    engine, _ = load(llama, "cuda", **options)
    checked.replays = 0
    found = drive(engine, requests)
    signs = [*checked.whys, *(each.error or "" for each in found.values())]
    signs += [] if checked.replays else ["no graph"]
    signs += ["other tokens" for seq, each in found.items() if each.ids != expected[seq].ids]
    assert any(sign in each for each in signs), signs
