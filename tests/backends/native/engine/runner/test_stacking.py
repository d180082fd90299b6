"""States are stacked and taken apart again; what differs in more than numbers and lengths is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedConfig

from backends.native.engine.runner.stacking import Unstackable, select, stack

pytestmark = pytest.mark.torch


def cache(length: int, start: float, rows: int = 1) -> DynamicCache:
    made = DynamicCache()
    keys = torch.arange(rows * 2 * length * 3.0).view(rows, 2, length, 3) + start
    made.update(keys, -keys, 0)
    return made


def test_rows_of_a_stack_are_the_states_with_zeros_before_them() -> None:
    config = PreTrainedConfig()
    states = [{"cache": cache(length, 100.0 * length), "config": config, "flag": True} for length in (4, 2, 3)]
    stacked = stack(states)
    assert (stacked["config"], stacked["flag"]) == (config, True)
    assert stacked["cache"].get_seq_length() == 4
    for row, length in enumerate((4, 2, 3)):
        layer = select(stacked, torch.tensor([row]), 3)["cache"].layers[0]
        assert torch.equal(layer.keys[:, :, 4 - length :], states[row]["cache"].layers[0].keys)
        assert torch.equal(layer.values[:, :, 4 - length :], states[row]["cache"].layers[0].values)
        assert not layer.keys[:, :, : 4 - length].any()
    assert states[1]["cache"].get_seq_length() == 2, "the parts are left as they were"


def test_counters_become_the_largest_and_what_is_no_rows_stays() -> None:
    window = torch.tensor(10)
    assert stack([{"length": 3, "window": window}, {"length": 5, "window": window}]) == {"length": 5, "window": window}
    assert select({"length": 5, "window": window}, torch.tensor([1]), 2) == {"length": 5, "window": window}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(1, 2, 3), torch.zeros(1, 3, 2)),
        (torch.tensor(1), torch.tensor(2)),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ([1], (1,)),
        ("a", "b"),
        (True, False),
    ],
)
def test_states_of_unlike_structure_are_refused(one: Any, other: Any) -> None:
    with pytest.raises(Unstackable):
        stack([one, other])
