"""Drafts by a model's own MTP layer: they are those of transformers' layer run over the whole sequence, whatever steps
the tokens came in, and no text depends on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from backends.native.engine.draft_model import Shadow
from backends.native.engine.errors import LoadError
from backends.native.engine.factory import load_engine
from backends.native.engine.loading.mtp import MtpLayer, _OfWantedRows, load_mtp
from backends.native.engine.loading.weights import load
from backends.native.engine.loop import Engine
from backends.native.engine.mtp_drafts import MtpDrafts
from backends.native.engine.runner.swap_space import SwapSpace
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.engine.scheduling.speculation import Speculation
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Submit
from tests.backends.native.engine.kernels.compilers import needs_compiler
from tests.backends.native.engine.pretended.engines import accelerator
from tests.backends.native.engine.test_draft_model import Eager
from tests.backends.native.engine.test_exact_speculation import assert_same, requests
from tests.backends.native.engine.tiny import CONTEXT, VOCAB, Answer, Tiny, build, prompt

pytestmark = pytest.mark.torch

_SHAPE = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4} | {
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
}
KINDS: dict[str, dict[str, Any]] = {
    "deepseek_v3": _SHAPE
    | {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16}
    | {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
    "glm4_moe": _SHAPE | {"num_key_value_heads": 2, "head_dim": 12},
}
LAYERS, BLOCK = 2, 4


def write(kind: str, folder: Path, *, bigrams: bool = False, **sizes: int) -> str:
    """A checkpoint with an MTP layer, as the authors publish theirs: behind the last layer, with weights of its own.

    Args:
        kind: a key of `KINDS`.
        folder: where to.
        bigrams: whether every layer adds nothing, so that both predict by the newest token alone, and alike.
        sizes: other than those of `KINDS`.
    """
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, num_hidden_layers=LAYERS + 1, **KINDS[kind] | sizes)
    model = AutoModelForCausalLM.from_config(config).float()
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            parameter.data.normal_(0.0, 1.5 / parameter.shape[-1] ** 0.5)
            if bigrams and ("o_proj" in name or "down_proj" in name):
                parameter.data.zero_()
        elif not bigrams:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    model.save_pretrained(folder)
    tensors, width = load_file(folder / "model.safetensors"), config.hidden_size
    scale = 0.0 if bigrams else 0.2
    own = {f"{name}.weight": 1 + scale * torch.randn(width) for name in ("enorm", "hnorm", "shared_head.norm")}
    projection = torch.randn(width, 2 * width) * 1.5 / (2 * width) ** 0.5
    own["eh_proj.weight"] = torch.eye(width, 2 * width) if bigrams else projection
    own["shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    own["embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors |= {f"model.layers.{LAYERS}.{name}": tensor for name, tensor in own.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": LAYERS}))
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return {kind: write(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


class Reference:
    """transformers' own model, after a `change`, and its MTP layer over whole sequences."""

    def __init__(self, folder: str, change: Callable[[Any], object] = lambda _: None) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
        change(self._model)
        self._model._keys_to_ignore_on_load_unexpected = [rf"\.layers\.{LAYERS}\."]
        self._mtp = MtpModel.from_pretrained(self._model).eval()
        self._found: list[Tensor] = []
        self._mtp.layers[0].register_forward_hook(lambda *given: self._found.append(given[-1]))

    @torch.inference_mode()
    def logits(self, tokens: Seq[int], known: int) -> Tensor:
        """What the layer predicts behind `tokens`, of which those from `known` on are drafts: [vocabulary]."""
        given = torch.tensor([tokens])
        states = self._model.model(given[:, : known - 1]).last_hidden_state
        for count in range(known, len(tokens) + 1):
            self._mtp(
                input_ids=given[:, 1:count],
                last_hidden_states=states,
                attention_mask=torch.ones(1, count - 1, dtype=torch.int64),
                position_ids=torch.arange(1, count).unsqueeze(0),
                mtp_cache=MtpCache(config=self._mtp.config),
            )
            states = torch.cat((states, self._found.pop()[:, -1:]), dim=1)
        logits: Tensor = self._model.lm_head(states[0, -1])
        return logits


class Recorded(MtpDrafts):
    """Keeps what it predicts, and gives right drafts now and then instead of its own.

    Attributes:
        predicted: logits by the tokens that they stand behind, and how many of these are no drafts.
        known: the tokens of each sequence's answer.
    """

    predicted: dict[tuple[tuple[int, ...], int], Tensor]
    known: dict[int, list[int]]
    random: Random

    def _choose(self, shadows: Seq[Shadow], states: Tensor) -> list[int]:
        for shadow, row in zip(shadows, self._layer.logits(states), strict=True):
            self.predicted[tuple(shadow.tokens), shadow.known] = row.clone().cpu()
        return super()._choose(shadows, states)

    def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        found = super().draft(wanted)
        for sequence, drafts in found.items():
            right = self.known.get(sequence.request.seq, [])[sequence.generated :]
            share = self.random.randint(0, len(drafts))
            found[sequence] = [*right[:share], *drafts[share:]][: len(drafts)]
        return found


def engine_of(folder: str, draft_model: str = "mtp", **options: Any) -> Tiny:
    given = {"device": "cpu", "threads": 1, "kv_tokens": 2048, "block_size": BLOCK, "max_sequences": 8} | options
    engine, _ = load_engine(EngineOptions(folder, draft_model=draft_model, **given), lambda _: None)
    assert isinstance(engine, Engine)
    if engine._speculation is not None:
        engine._speculation = Eager(engine._speculation.source)
    return Tiny(engine, engine._scheduler, engine._runner)


def recording(tiny: Tiny, known: dict[int, list[int]]) -> Recorded:
    """Have the engine's MTP drafts recorded."""
    source = tiny.engine._speculation.source  # type: ignore[union-attr]
    assert isinstance(source, MtpDrafts)
    source.__class__ = Recorded
    assert isinstance(source, Recorded)
    source.predicted, source.known, source.random = {}, known, Random(0)
    return source


def wrong(source: Recorded, reference: Reference) -> int:
    """How many predictions are not those of transformers."""
    count = 0
    for (tokens, known), logits in source.predicted.items():
        expected = reference.logits(tokens, known)
        count += not torch.allclose(logits, expected, atol=1e-3 * float(expected.abs().max()))
    return count


def served(tiny: Tiny, asked: Seq[Submit]) -> dict[int, Answer]:
    """Answers to `asked`, then to prompts that begin with the same tokens: half of them go on otherwise at a block."""
    answers, again = tiny.answers(asked), []
    for one in asked:
        tokens = (*one.prompt, *answers[one.seq].ids)
        if one.seq % 2:
            tokens = (*tokens[: len(tokens) // BLOCK * BLOCK], *prompt(3, one.seq))
        again.append(replace(one, seq=one.seq + 100, prompt=tokens, max_new_tokens=6))
    return answers | tiny.answers(again)


SMALL = {"kv_tokens": 112, "step_tokens": 20}
"""Sequences are preempted, and prompts run in chunks."""
LARGE = {"kv_tokens": 2048, "step_tokens": 64}
"""The second half of the prompts finds the first one's blocks."""


def run(
    folder: str,
    options: Mapping[str, Any],
    change: Callable[[Tiny], None] = lambda _: None,
    asked: Seq[Submit] = (),
) -> tuple[Tiny, Recorded]:
    """Serve with recorded drafts, after a `change`, and compare the answers with those of an engine without."""
    asked = asked or requests(10, 20)
    expected = served(engine_of(folder, "", **options), asked)
    tiny = engine_of(folder, **options)
    change(tiny)
    source = recording(tiny, {seq: answer.ids for seq, answer in expected.items()})
    assert_same(served(tiny, asked), expected)
    assert not source._followed
    return tiny, source


@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_transformers(kind: str, sizes: Mapping[str, int], folders: Mapping[str, str]) -> None:
    tiny, source = run(folders[kind], sizes)
    speculation = tiny.engine._speculation
    assert speculation is not None
    assert tiny.scheduler.preemptions if sizes is SMALL else tiny.scheduler.prefix_hits
    assert 0.2 < speculation.accepted / speculation.drafted < 0.8
    assert sum(len(tokens) > known for tokens, known in source.predicted) > 80
    assert wrong(source, Reference(folders[kind])) == 0


def test_parts_of_the_layer_are_replaced_if_a_small_copy_agrees(
    folders: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in folders.values():
        layer = load_mtp(load(folder), folder)
        assert isinstance(layer._layers[0].mtp_block.mlp, _OfWantedRows)
        assert layer._layers[0].mtp_block.input_layernorm.__class__.__name__ == "FusedNorm"
    own = _OfWantedRows.forward
    monkeypatch.setattr(_OfWantedRows, "forward", lambda self, states: 1.01 * own(self, states))
    layer = load_mtp(load(folder), folder)
    assert not isinstance(layer._layers[0].mtp_block.mlp, _OfWantedRows)


def shifted(_: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    run_layer = MtpLayer.run
    monkeypatch.setattr(
        MtpLayer, "run", lambda self, runner, pack, states: run_layer(self, runner, pack, states.roll(1, 0))
    )


def without_chunks(_: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = MtpDrafts.follow

    def follow_ends(self: MtpDrafts, works: Seq[Work], chosen: Seq[Seq[int]]) -> None:
        if all(work.samples for work in works):
            follow(self, works, chosen)

    monkeypatch.setattr(MtpDrafts, "follow", follow_ends)


def hits_kept_whole(tiny: Tiny, _: pytest.MonkeyPatch) -> None:
    tiny.scheduler.looks_ahead = False


@pytest.mark.parametrize(("mutate", "sizes"), [(shifted, LARGE), (without_chunks, SMALL), (hits_kept_whole, LARGE)])
def test_what_goes_wrong_is_noticed_and_changes_no_text(
    mutate: Any, sizes: Mapping[str, int], folders: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, source = run(folders["deepseek_v3"], sizes, lambda tiny: mutate(tiny, monkeypatch))
    assert wrong(source, Reference(folders["deepseek_v3"]))


def test_a_layer_that_predicts_what_its_model_does_is_right(tmp_path: Path) -> None:
    folder = write("deepseek_v3", tmp_path, bigrams=True)
    tiny, asked = engine_of(folder), requests(8, 24)
    expected = engine_of(folder, "").answers(asked)
    for _ in range(2):
        assert_same(tiny.answers(asked, apart=1), expected)
        speculation = tiny.engine._speculation
        assert speculation is not None
        # Sampled or not: its drafts have the same noise.
        assert speculation.accepted > 0.98 * speculation.drafted > 100
        tiny.engine.sleep()
        tiny.engine.wake()


@needs_compiler
def test_predictions_on_an_accelerator_are_the_same_behind_swapped_pages(folders: Mapping[str, str]) -> None:
    asked = requests(3, 12)
    expected = engine_of(folders["deepseek_v3"], "").answers(asked)
    with accelerator():
        tiny = engine_of(folders["deepseek_v3"], device="auto", kv_tokens=24, step_tokens=20, swap_space=0.01)
        restored, swap = [], tiny.scheduler.swap
        assert isinstance(swap, SwapSpace)
        restore = swap.restore
        swap.restore = lambda *given: restored.append(restore(*given)) or restored[-1]  # type: ignore[method-assign]
        source = recording(tiny, {seq: answer.ids for seq, answer in expected.items()})
        assert_same(tiny.answers(asked), expected)
    assert any(restored)
    assert len(source.predicted) > 15
    assert wrong(source, Reference(folders["deepseek_v3"])) == 0


def test_a_layer_that_fails_is_given_up(folders: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Tensor:
        raise RuntimeError("out of order")

    asked = requests(3, 8)
    tiny = engine_of(folders["glm4_moe"])
    tiny.engine._speculation = Speculation(tiny.engine._speculation.source)  # type: ignore[union-attr]
    monkeypatch.setattr(MtpLayer, "run", fail)
    assert_same(tiny.answers(asked), engine_of(folders["glm4_moe"], "").answers(asked))
    assert tiny.engine._speculation.source is None


def test_models_without_such_a_layer_are_refused(folders: Mapping[str, str], tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "llama")
    with pytest.raises(LoadError, match="one layer for it; this llama has 0"):
        engine_of(str(tmp_path / "llama"))
    folder = folders["deepseek_v3"]
    with pytest.raises(LoadError, match="on one device"):
        engine_of(folder, tensor_parallel=2)
    with pytest.raises(LoadError, match="verifies no drafts"):
        engine_of(folder, execution_path="per_sequence")
    loaded, lacking = load(folder), tmp_path / "lacking"
    shutil.copytree(folder, lacking)
    tensors = load_file(lacking / "model.safetensors")
    del tensors[f"model.layers.{LAYERS}.eh_proj.weight"]
    save_file(tensors, lacking / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadError, match="eh_proj"):
        load_mtp(loaded, str(lacking))
