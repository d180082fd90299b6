"""Sequences with different LoRA adapters in one batch each give what `generate` gives with theirs merged in."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.lora.layers import LoraAdapter, LoraLinear, LowRank, adapting, inject_lora, spans
from backends.native.engine.lora.weights import load_lora_adapters
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.runner.per_sequence import PerSequenceRunner
from backends.native.engine.runner.stacking import Stacking
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.lora import folders
from tests.backends.native.engine.tiny import Answer, Tiny, build, plain, prompt, tiny

pytestmark = pytest.mark.torch

FAMILIES = ("llama", "gemma2", "phi3", "gpt2", "gpt_oss")
NAMES = ("", "a", "b", "a", "", "b")
LENGTHS = (27, 14, 40, 9, 1, 20)
NEW = 8


class World:
    """A family's model with two LoRA adapters: merged, for reference, and put on."""

    def __init__(self, family: str, folder: Path) -> None:
        targets = folders.TARGETS[family]
        self.family = family
        self.folders = {
            "a": folders.save(folder / "a", plain(family), targets, 1),
            "b": folders.save(folder / "b", plain(family), targets, 2, r=3, alpha=5, use_rslora=True),
        }
        self.found = load_lora_adapters(plain(family), {name: str(path) for name, path in self.folders.items()})
        self.references = {"": plain(family)} | {
            name: folders.merged(plain(family), path) for name, path in self.folders.items()
        }

    def model(self, found: dict[str, LoraAdapter] | None = None, *, pack: bool = False) -> Any:
        """A model with LoRA adapters put on: its own, or `found`."""
        model = build(self.family)
        if pack:
            pack_linears(model, least=1)
        inject_lora(model, self.found if found is None else found)
        return model

    @functools.lru_cache(maxsize=64)  # noqa: B019 - a world lives as long as the module
    def expected(self, name: str, tokens: tuple[int, ...]) -> tuple[list[int], torch.Tensor]:
        """Greedy tokens of transformers' `generate` and their logprobs [tokens, vocabulary]."""
        given = torch.tensor([tokens])
        out = self.references[name].generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return out.sequences[0, len(tokens) :].tolist(), torch.stack(out.logits)[:, 0].log_softmax(-1)

    def error(self, asked: list[Submit], answers: dict[int, Answer]) -> float:
        """The most by which logprobs differ; infinite if a token does."""
        worst = 0.0
        for request in asked:
            ids, rows = self.expected(request.lora_adapter, request.prompt)
            answer = answers[request.seq]
            if answer.ids != ids:
                return math.inf
            logprobs = torch.tensor([each.top_logprobs for each in answer.logprobs])
            worst = max(worst, float((logprobs - rows.topk(5).values).abs().max()))
        return worst


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return functools.lru_cache(lambda family: World(family, tmp_path_factory.mktemp(family)))


def requests(names: tuple[str, ...] = NAMES) -> list[Submit]:
    return [
        Submit(seq, prompt(length, seq), NEW, top_logprobs=5, lora_adapter=name)
        for seq, (name, length) in enumerate(zip(names, LENGTHS, strict=True))
    ]


def engine(model: Any, *, blocks: int = 64, **options: Any) -> Tiny:
    return tiny(PackedRunner(model, KVCache(blocks, 4), lora_adapters=("a", "b")), blocks=blocks, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_a_mixed_batch(family: str, worlds: Any) -> None:
    world, asked = worlds(family), requests()
    model = world.model()
    assert world.error(asked, engine(model).answers(asked)) < 1e-4
    assert world.error(asked, engine(model).answers(asked, apart=2)) < 1e-4


def test_in_a_hybrid_model(worlds: Any) -> None:
    """Also within recurrent layers, whose states are those of the sequence's LoRA adapter; in chunks, too."""
    world, asked = worlds("lfm2"), requests()
    model = world.model()
    assert world.error(asked, engine(model).answers(asked)) < 1e-4
    assert world.error(asked, engine(model, step_tokens=9).answers(asked, apart=2)) < 1e-4


def test_alone_and_all_with_the_same(worlds: Any) -> None:
    world = worlds("llama")
    for name in ("", "a", "b"):
        asked = requests((name,) * 6)
        assert world.error(asked, engine(world.model()).answers(asked)) < 1e-4
        assert world.error(asked[:1], engine(world.model()).answers(asked[:1])) < 1e-4


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_with_chunked_prefill_and_preemption(family: str, worlds: Any) -> None:
    world, asked = worlds(family), requests()
    runs = engine(world.model(), blocks=13, step_tokens=9, max_sequences=5)
    assert world.error(asked, runs.answers(asked, apart=3)) < 1e-4
    assert runs.preemptions


@pytest.mark.parametrize("family", ["llama", "mixtral", "gpt_oss"])
def test_beside_packed_layers_and_experts(family: str, worlds: Any) -> None:
    world, asked = worlds(family), requests()
    model = world.model(pack=True)
    assert world.error(asked, engine(model).answers(asked)) < 1e-4


@pytest.mark.parametrize(
    ("family", "stacking"),
    [*((name, Stacking.NONE) for name in ("llama", "gpt2", "lfm2", "bloom")), ("lfm2", Stacking.PADDED)],
)
def test_on_the_per_sequence_path(family: str, stacking: Stacking, worlds: Any) -> None:
    world, asked = worlds(family), requests()
    runner = PerSequenceRunner(world.model(), ("a", "b"), stacking)
    assert world.error(asked, tiny(runner).answers(asked, apart=1)) < 1e-4


def test_a_sequence_that_lost_its_cache_is_run_again_with_its_lora_adapter(worlds: Any) -> None:
    world, tokens = worlds("llama"), prompt(9, 0)
    runner, sequence = PerSequenceRunner(world.model(), ("a",)), Sequence(0, Submit(0, tokens, 1, lora_adapter="a"), 0)
    with torch.inference_mode():
        runner.run([Work(sequence, 0, 8, samples=True)])
        runner.forget(sequence)
        logits = runner.run([Work(sequence, 8, 1, samples=True)])
        expected = world.references["a"](torch.tensor([tokens])).logits[0, -1:]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_prefixes_are_shared_within_a_lora_adapter_only(worlds: Any) -> None:
    world = worlds("llama")
    runs = engine(world.model())
    asked = [Submit(seq, prompt(20, 0), NEW, top_logprobs=5, lora_adapter=name) for seq, name in enumerate(NAMES[:3])]
    first, again = [{seq: runs.answers([one])[seq] for seq, one in enumerate(asked)} for _ in range(2)]
    assert [answer.cached_tokens for answer in first.values()] == [0, 0, 0]
    assert [answer.cached_tokens for answer in again.values()] == [16, 16, 16]
    assert world.error(asked, first) < 1e-4
    assert world.error(asked, again) < 1e-4


def swapped(found: dict[str, LoraAdapter]) -> dict[str, LoraAdapter]:
    return {"a": found["b"], "b": found["a"]}


def unscaled(found: dict[str, LoraAdapter]) -> dict[str, LoraAdapter]:
    halves = {layer: LowRank(pair.a, pair.b * (4 / 6)) for layer, pair in found["a"].items()}
    return found | {"a": halves}


def partial(found: dict[str, LoraAdapter]) -> dict[str, LoraAdapter]:
    return found | {"b": dict(list(found["b"].items())[:-1])}


@pytest.mark.parametrize("wrong", [swapped, unscaled, partial, lambda found: found | {"a": {}}])
def test_the_comparison_would_notice(wrong: Any, worlds: Any) -> None:
    world, asked = worlds("llama"), requests()
    assert world.error(asked, engine(world.model(wrong(world.found))).answers(asked)) > 1e-2


def test_an_unknown_lora_adapter_is_refused(worlds: Any) -> None:
    runs = engine(worlds("llama").model())
    answers = runs.answers(
        [Submit(0, prompt(3, 0), NEW, lora_adapter="c"), Submit(1, prompt(3, 0), NEW, lora_adapter="a")]
    )
    assert answers[0].error == "there is no LoRA adapter 'c'"
    assert len(answers[1].ids) == NEW


def works(*given: tuple[str, int]) -> list[Work]:
    return [
        Work(Sequence(0, Submit(seq, (3,) * count, 1, lora_adapter=name), seq), 0, count, samples=True)
        for seq, (name, count) in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("given", "adapted"),
    [
        ((("", 2), ("", 1)), []),
        ((("", 2), ("a", 1), ("a", 3), ("b", 1)), [("a", 2, 6), ("b", 6, 7)]),
        ((("a", 1), ("", 1), ("a", 1)), [("a", 0, 1), ("a", 2, 3)]),
    ],
)
def test_neighbours_with_the_same_lora_adapter_are_one_span(given: Any, adapted: Any) -> None:
    found = spans(works(*given))
    assert found.adapted == adapted
    assert found.rows == sum(count for _, count in given)


def test_rows_are_added_to_in_place_and_no_others() -> None:
    torch.manual_seed(0)
    linear, pair = nn.Linear(6, 5), LowRank(torch.randn(2, 6), torch.randn(2, 5))
    layer, rows = LoraLinear(linear, {"a": pair}), torch.randn(1, 4, 6)
    with torch.inference_mode():
        plain_rows = linear(rows)
        with adapting(works(("", 1), ("a", 2), ("b", 1))):
            output = layer(rows)
        assert torch.equal(layer(rows), plain_rows)
    assert torch.equal(output[0, [0, 3]], plain_rows[0, [0, 3]])
    torch.testing.assert_close(output[0, 1:3], plain_rows[0, 1:3] + rows[0, 1:3] @ pair.a.T @ pair.b)


def test_a_layer_that_is_given_other_rows_says_so() -> None:
    layer = LoraLinear(nn.Linear(6, 5), {})
    with adapting(works(("a", 3))), pytest.raises(RuntimeError, match="given 2 of a step's 3 rows"):
        layer(torch.randn(2, 6))
