"""What an engine takes for options that leave it to choose."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from backends.native.engine import defaults
from backends.native.engine.defaults import with_own_device, with_sizes
from backends.native.protocol.engine_options import EngineOptions

pytestmark = pytest.mark.torch


def test_engines_of_one_machine_take_its_accelerators_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [EngineOptions("", replica_number=number, replica_count=3) for number in range(3)]
    assert [with_own_device(each) for each in options] == options, "there is no accelerator"
    monkeypatch.setattr(defaults, "default_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    placed = [with_own_device(each) for each in options]
    assert [(each.device, each.replica_count) for each in placed] == [("cuda:0", 2), ("cuda:1", 2), ("cuda:0", 2)]
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 5)
    placed = [with_own_device(replace(each, tensor_parallel=2)) for each in options]
    assert [(each.device, each.replica_count) for each in placed] == [("cuda:0", 2), ("cuda:2", 2), ("cuda:0", 2)]
    chosen = EngineOptions("", device="cuda:1", replica_number=0, replica_count=2)
    assert with_own_device(chosen) == chosen


def test_an_accelerator_has_larger_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = with_sizes(EngineOptions("", device="cpu", step_tokens=100))
    assert (chosen.max_sequences, chosen.step_tokens) == (64, 100)
    monkeypatch.setattr(defaults, "pick_device", lambda _: torch.device("cuda"))
    chosen = with_sizes(EngineOptions("", max_sequences=8))
    assert (chosen.max_sequences, chosen.step_tokens) == (8, 2048)
