"""The training script: runs from its command line and writes a folder that loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools.demo_model.evaluate import DemoModel
from tools.demo_model.model import build_model
from tools.demo_model.samples.chats import Chat, user
from tools.demo_model.tokenizer import VOCABULARY_SIZE
from tools.demo_model.train import SMOKE, Plan, main, train_copying, train_vision

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def keep_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_smoke_run_writes_a_loadable_folder(tmp_path):
    main(["--smoke", "--threads", "1", "--out", str(tmp_path)])
    model = DemoModel(tmp_path)
    assert len(model.tokenizer) == VOCABULARY_SIZE
    assert all(torch.isfinite(parameter).all() for parameter in model.model.parameters())
    assert len(model.answers([Chat([user("Hello")])])) == 1
    main(["--smoke", "--threads", "1", "--resume", str(tmp_path), "--out", str(tmp_path / "on")])
    assert len(DemoModel(tmp_path / "on").answers([Chat([user("Hello")])])) == 1


def test_the_command_line_sets_the_plan(tmp_path):
    seen: list[tuple[Plan, Path]] = []
    main(["--out", str(tmp_path), "--seed", "7"], run=lambda plan, out: seen.append((plan, out)))
    assert seen == [(Plan(seed=7), tmp_path)]


def test_the_copying_stage_trains_the_language_model_only():
    model, start = build_model(0), build_model(0).state_dict()
    train_copying(model, SMOKE)
    assert _changed(model, start) == {"language_model"}


def test_the_vision_stage_trains_the_tower_only():
    model, start = build_model(0), build_model(0).state_dict()
    train_vision(model, SMOKE)
    assert _changed(model, start) == {"vision_tower"}


def _changed(model, start) -> set[str]:
    """The parts of the model, of its three, that differ from ``start``."""
    now = model.state_dict()
    parts = ("language_model", "vision_tower", "multi_modal_projector")
    changed = [name for name in now if not torch.equal(now[name], start[name]) and "lm_head" not in name]
    return {part for part in parts for name in changed if part in name}
