"""Progress reports reach the thread that runs the model, before each layer."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pytest
import torch
from torch import nn

from backends.native.engine.attention.progress import on_progress, report_progress, watch_layers

pytestmark = pytest.mark.torch


@pytest.fixture
def reports() -> Iterator[list[int]]:
    found: list[int] = []
    on_progress(lambda: found.append(1))
    yield found
    on_progress(lambda: None)


def test_a_report_is_the_threads_own(reports: list[int]) -> None:
    report_progress()
    other = Thread(target=report_progress)
    other.start()
    other.join()
    assert len(reports) == 1


def test_a_watched_model_reports_before_each_of_its_layers(reports: list[int]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)])

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[:2]:
                rows = layer(rows)
            return rows

    model = Model()
    watch_layers(model)
    model(torch.zeros(1, 2))
    assert len(reports) == 2, "the layers that were run"
