from __future__ import annotations

import pytest

from adapters.blocks import Blocks, Closed, Opened, Said, Step
from schemas.errors import BackendFailed
from schemas.ir import Delta, Finished, FinishReason, ToolDelta

FIRST, MORE, SECOND = ToolDelta(0, "a", "f", "{"), ToolDelta(0, arguments="}"), ToolDelta(1, "b", "g")
END = Finished(reason=FinishReason.EOS)

ANSWERS: dict[str, tuple[tuple[Delta, ...], list[Step]]] = {
    "nothing": ((END,), []),
    "text goes on": (
        (Delta(text="a"), Delta(text="b"), END),
        [Opened("text"), Said("a"), Said("b"), Closed(True)],
    ),
    "thoughts come before text": (
        (Delta(text="b", reasoning="a"), END),
        [Opened("reasoning"), Said("a"), Closed(False), Opened("text"), Said("b"), Closed(True)],
    ),
    "calls follow each other": (
        (Delta(tool_calls=(FIRST,)), Delta(tool_calls=(MORE, SECOND)), END),
        [Opened(None, FIRST), Said("{"), Said("}"), Closed(False), Opened(None, SECOND), Said("{}"), Closed(True)],
    ),
    "text amid calls comes after them": (
        (Delta(tool_calls=(FIRST,)), Delta(text="t", tool_calls=(MORE,)), Delta(refusal="r"), END),
        [
            Opened(None, FIRST),
            Said("{"),
            Said("}"),
            Closed(False),
            Opened("text"),
            Said("t"),
            Closed(False),
            Opened("refusal"),
            Said("r"),
            Closed(True),
        ],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_one_block_is_open_at_a_time(name: str) -> None:
    deltas, steps = ANSWERS[name]
    blocks = Blocks()
    assert [step for delta in deltas for step in blocks.feed(delta)] == steps


def test_a_tool_call_cannot_continue_after_another_one() -> None:
    blocks = Blocks()
    with pytest.raises(BackendFailed):
        list(blocks.feed(Delta(tool_calls=(FIRST, SECOND, MORE))))
