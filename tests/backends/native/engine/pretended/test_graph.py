"""The graph checker notices what a graph could not replay, and passes the model's part of a decode step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.native.engine.loop import Engine
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.device import PretendedDevice
from tests.backends.native.engine.pretended.engines import (
    SAMPLING,
    counted,
    decode_steps,
    load,
    save,
)
from tests.backends.native.engine.pretended.graph import why_not_captured
from tests.backends.native.engine.pretended.kernels import pretend_triton
from tests.backends.native.engine.tiny import prompt

pytestmark = [pytest.mark.torch, needs_compiler, counted]


@pytest.fixture
def device() -> Iterator[PretendedDevice]:
    with PretendedDevice() as device, torch.inference_mode():
        yield device


class Step:
    """A step that a graph could replay: it reads its input where it was, and writes the next one there."""

    def __init__(self, device: PretendedDevice) -> None:
        self.device = device
        self.ids = torch.zeros(4, dtype=torch.int64, device=device.device)
        self.weight = torch.ones(8, 8, device=device.device)
        self.calls = 0
        self.kept: list[torch.Tensor] = []
        self.more: Callable[[Step], Any] = lambda _: None

    def __call__(self) -> None:
        self.calls += 1
        self.kept.append(self.weight[:4].clone())
        self.ids.copy_((self.weight[self.ids] @ self.weight).argmax(-1))
        self.more(self)


def _move(step: Step) -> None:
    step.ids = step.ids + 1


def _read_the_last_steps(step: Step) -> None:
    """A temporary of the step before, which is elsewhere than that of the step before it."""
    step.kept[-2:][0].sum()


def _launch(step: Step) -> None:
    """A kernel on the same tensors, with a grid that depends on a length."""
    step.device.launch("attend", lambda *_: None, step.ids, step.weight, {"grid": step.calls // 2})


MUTATIONS: dict[str, tuple[Callable[[Step], Any], str]] = {
    "item": (lambda step: step.ids[0].item(), "waits or copies"),
    "a copy": (lambda step: torch.ones(1).pin_memory().to(step.ids.device, non_blocking=True), "waits or copies"),
    "a length": (lambda step: step.weight[: step.calls % 7].sum(), "differs"),
    "a branch": (lambda step: step.weight.sum() if step.calls % 2 else None, "differs"),
    "a buffer that moves": (_move, "buffers elsewhere"),
    "a number of the host": (lambda step: step.ids.add_(step.calls), "differs"),
    "another part of a tensor": (lambda step: step.weight[step.calls % 7].sum(), "differs"),
    "a temporary that moves": (_read_the_last_steps, "differs"),
    "a grid": (_launch, "differs"),
}


def test_a_step_that_could_be_captured(device: PretendedDevice) -> None:
    step = Step(device)
    assert why_not_captured(device, step, 4, lambda: (step.ids,)) is None


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_it_notices(device: PretendedDevice, mutation: str) -> None:
    step = Step(device)
    step.more, why = MUTATIONS[mutation]
    assert why in (why_not_captured(device, step, 4, lambda: (step.ids,)) or "")


def test_what_another_graph_has_left_in_the_shared_memory_is_gone(device: PretendedDevice) -> None:
    weight = torch.ones(8, device=device.device)
    first, of_first = device.capture(lambda: weight * 2)
    second, of_second = device.capture(lambda: weight * 3)
    first()
    assert of_first.tolist() == [2.0] * 8
    second()
    assert of_second.tolist() == [3.0] * 8
    assert of_first.isnan().all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llama", tmp_path_factory.mktemp("llama"))


def test_with_triton_a_step_copies_twice_and_waits_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs and the keys of the noise in, tokens out, however tokens are drawn; the wait is for the tokens."""
    with PretendedDevice() as device:
        pretend_triton(monkeypatch, device)
        kinds = {kind: params for kind, params in SAMPLING.items() if kind not in ("penalties", "bias and watermark")}
        traces = {
            kind: (trace.waits.total(), trace.copies.total()) for kind, trace in decode_steps(device, folder, kinds)
        }
        assert any(name == "add_gumbel_noise" for name, _ in device.trace.kernels)
    assert traces == dict.fromkeys(kinds, (1, 2))


def test_the_models_part_of_a_decode_step_is_one_list_of_operations(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts grow up to 56 tokens, and block tables stay 4 pages wide."""
    with PretendedDevice() as device:
        pretend_triton(monkeypatch, device)
        engine, _ = load(folder, "cuda", execution_path="packed", step_tokens=512)
        assert isinstance(engine, Engine)
        for seq in range(3):
            engine.handle(0, Submit(seq, prompt(20 + 12 * seq, seq), 12))
        lists: list[list[Any]] = []
        runner = engine._runner._model

        def recorded(*args: Any, **kwargs: Any) -> Any:
            device.trace.clear()
            found = runner(*args, **kwargs)
            assert not device.trace.waits
            assert not device.trace.copies
            # Without a graph, inputs are elsewhere in each step.
            lists.append([each.without_memory for each in device.trace.operations])
            return found

        engine._runner._model = recorded
        while engine.busy:
            engine.step()
    assert len(lists) == 12
    assert all(each == lists[1] for each in lists[1:])
