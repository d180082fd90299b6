"""The encoder engine: composition of batches, refusals, and isolation of faulty texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backends.native.engine.encoder_engine import EncoderEngine
from backends.native.engine.pooling.pooler import Pooler
from backends.native.protocol.messages import Cancel, Output, Ping, Pong, Submit
from backends.native.sentence_transformers import Recipe

pytestmark = pytest.mark.torch

BAD = 13


class Model:
    """A token's state is its id and the sum of all ids; records the shapes of its inputs, and raises at `BAD`."""

    device = torch.device("cpu")
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(pad_token_id=1))

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.on_call: Callable[[], None] = lambda: None

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor]:
        self.shapes.append(tuple(input_ids.shape))
        self.on_call()
        if (input_ids == BAD).any():
            raise RuntimeError("an unreadable text")
        total = (input_ids * attention_mask).sum(1, keepdim=True).expand_as(input_ids)
        return (torch.stack([input_ids, total], dim=-1).float(),)


def make(**more: Any) -> tuple[EncoderEngine, Model]:
    model = Model()
    pooler = Pooler(Recipe(normalize=False), "", 2, torch.device("cpu"))
    limits = {"vocab_size": 50, "context_length": 16, "step_tokens": 12, "max_sequences": 3, "max_waiting": 8} | more
    return EncoderEngine(model, pooler, **limits), model


def submit(engine: EncoderEngine, *prompts: tuple[int, ...], connection: int = 0) -> None:
    for seq, prompt in enumerate(prompts):
        engine.handle(connection, Submit(seq, prompt, 0, pool=True))


def run(engine: EncoderEngine) -> Iterable[tuple[int, Output]]:
    outputs = []
    while engine.busy:
        for connection, step in engine.step().items():
            outputs += [(connection, output) for output in step.outputs]
    return outputs


def test_texts_of_a_length_run_together_and_the_oldest_first() -> None:
    engine, model = make()
    submit(engine, (2,) * 4, (3,) * 16, (4,) * 5, (5,), (6,) * 4)
    vectors = {output.seq: output.vector for _, output in run(engine)}
    assert vectors == {0: (2, 8), 1: (3, 48), 2: (4, 20), 3: (5, 5), 4: (6, 24)}
    assert model.shapes == [(2, 4), (1, 16), (2, 5)]  # 12 tokens a step, unless one text has more


def test_a_key_with_a_thousand_texts_delays_another_one_by_a_step() -> None:
    engine, _ = make(max_waiting=2000, max_sequences=1)
    for seq in range(1000):
        engine.handle(0, Submit(seq, (2,) * (1 + seq % 12), 0, pool=True, flow="greedy"))
    engine.step()
    engine.handle(0, Submit(1000, (3,) * 7, 0, pool=True, flow="other"))
    served = [output.seq for _ in range(3) for output in engine.step()[0].outputs]
    assert served.index(1000) <= 1
    engine.handle(0, Cancel(999))
    engine.disconnect(0)
    assert not engine.busy


def test_short_texts_overtake_long_ones_if_that_is_wanted() -> None:
    engine, _ = make(max_waiting=2000, max_sequences=1, short_first=True)
    for seq in range(20):
        engine.handle(0, Submit(seq, (2,) * 16, 0, pool=True))
    engine.step()
    engine.handle(0, Submit(20, (3,), 0, pool=True))
    assert 20 in [output.seq for _ in range(2) for output in engine.step()[0].outputs]


def test_a_step_has_at_most_max_sequences_texts() -> None:
    engine, model = make()
    submit(engine, *((2,),) * 7)
    run(engine)
    assert model.shapes == [(3, 1), (3, 1), (1, 1)]


def test_a_faulty_text_fails_alone() -> None:
    engine, _ = make()
    submit(engine, (2, 3), (BAD, 3), (4, 5))
    results = {output.seq: (output.vector, output.error) for _, output in run(engine)}
    assert results == {0: ((2.5, 5), None), 1: ((), "the engine failed on this sequence"), 2: ((4.5, 9), None)}


def test_invalid_and_excess_texts_are_refused() -> None:
    engine, _ = make(max_waiting=1)
    engine.handle(0, Submit(0, (2,), 5))
    engine.handle(0, Submit(1, (2,) * 17, 0, pool=True))
    engine.handle(0, Submit(2, (50,), 0, pool=True))
    submit(engine, (2,), (2,), connection=1)
    results = [(connection, output.seq, output.error, output.overloaded) for connection, output in run(engine)]
    assert results[:3] == [
        (0, 0, "the model makes embeddings and no text", False),
        (0, 1, "a text must have from 1 to 16 tokens", False),
        (0, 2, "token ids must be from 0 to 49", False),
    ]
    assert (1, 1, "1 sequences are waiting already", True) in results
    assert (1, 0, None, False) in results


def test_cancelled_texts_and_lost_connections_are_dropped() -> None:
    engine, model = make()
    submit(engine, (2,), (3,))
    submit(engine, (4,), connection=1)
    engine.handle(0, Cancel(0))
    engine.handle(0, Cancel(9))
    pong = engine.handle(0, Ping(7))
    assert pong is not None
    assert (pong.token, pong.waiting) == (7, 2)
    engine.disconnect(0)
    assert [connection for connection, _ in run(engine)] == [1]
    assert model.shapes == [(1, 1)]


def test_texts_of_the_present_step_are_running() -> None:
    engine, model = make()
    pongs: list[Pong | None] = []
    model.on_call = lambda: pongs.append(engine.handle(0, Ping(7)))
    submit(engine, (2,), (3,), (4,), (5,))
    run(engine)
    assert pongs == [Pong(7, 3, 1), Pong(7, 1, 0)]
    assert engine.handle(0, Ping(8)) == Pong(8)
