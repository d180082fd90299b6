"""Building an engine from options: its execution path, the sizes of its cache and steps, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from backends.native.engine import factory, runners
from backends.native.engine.errors import LoadError
from backends.native.engine.factory import load_engine
from backends.native.engine.kernels import jit
from backends.native.engine.loading import execution_path
from backends.native.engine.loading.weights import LoadedModel
from backends.native.engine.loop import Engine
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.runner.per_sequence import PerSequenceRunner
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Loading, Ready, Submit
from schemas.ir import FinishReason
from tests.backends.native.engine.tiny import CONTEXT, VOCAB, build

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of attention layers and one with convolutions."""
    folder = tmp_path_factory.mktemp("models")
    for family in ("llama", "lfm2", "rwkv"):
        build(family).save_pretrained(folder / family)
    return folder


@pytest.fixture(autouse=True)
def _threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def made(folder: Path, **options: Any) -> tuple[Engine, Ready]:
    engine, ready = load_engine(EngineOptions(str(folder), threads=1, **options), lambda _: None)
    assert isinstance(engine, Engine)
    return engine, ready


def test_a_model_that_passes_the_self_check_is_packed_and_the_log_names_the_path(models: Path) -> None:
    with capture_logs() as logs:
        engine, ready = made(models / "llama", kv_tokens=100)
    assert isinstance(engine._runner, PackedRunner)
    assert ready.execution_path == "packed"
    started = next(entry for entry in logs if entry["event"] == "engine.started")
    assert (started["execution_path"], started["device"], started["max_sequences"]) == ("packed", "cpu", 64)
    assert not any(entry["event"] == "model.not_packed" for entry in logs)


def test_keys_and_values_in_8_bits(models: Path) -> None:
    """The layers are fused here, and decode runs them one by one; a scale that is lost moves logits by their size."""
    found, blocks = {}, {}
    for dtype in ("auto", "int8"):
        engine, ready = made(models / "llama", kv_tokens=400, dtype="float32", kv_cache_dtype=dtype)
        assert ready.execution_path == "packed"
        assert isinstance(engine._runner, PackedRunner)
        engine.submit(0, Submit(1, tuple(range(3, 33)), 3, prompt_logprobs=0))
        outputs = []
        while engine.busy:
            outputs += [output for step in engine.step().values() for output in step.outputs]
        assert outputs[-1].reason is FinishReason.LENGTH
        found[dtype] = torch.tensor([each.logprob for each in outputs[0].prompt[1:]])
        blocks[dtype] = engine._runner.cache.bytes_per_block
    error = (found["int8"] - found["auto"]).abs().max()
    assert 0 < error < 0.05 * found["auto"].abs().max()
    assert blocks["int8"] < 0.6 * blocks["auto"]


def test_a_cache_of_another_dtype_or_path_is_refused(models: Path) -> None:
    with pytest.raises(LoadError, match="must be auto or int8, not 'fp8'"):
        made(models / "llama", kv_cache_dtype="fp8")
    with pytest.raises(LoadError, match="kv_cache_dtype = 'int8' is for models that run packed; this rwkv"):
        made(models / "rwkv", kv_cache_dtype="int8")


def test_a_model_that_fails_the_self_check_runs_per_sequence_with_a_warning(models: Path) -> None:
    with capture_logs() as logs:
        engine, ready = made(models / "rwkv", kv_tokens=100)
    assert isinstance(engine._runner, PerSequenceRunner)
    assert (ready.execution_path, ready.embedding_size) == ("per_sequence", 0)
    (warning,) = [entry for entry in logs if entry["event"] == "model.not_packed"]
    assert (warning["log_level"], warning["execution_path"]) == ("warning", "per_sequence")
    assert "no attention interface" in warning["why"]


def test_the_path_can_be_chosen_without_a_check(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_path, "why_not_packed", lambda *_, **__: pytest.fail("checked"))
    assert made(models / "llama", kv_tokens=100, execution_path="packed")[1].execution_path == "packed"
    assert made(models / "llama", kv_tokens=100, execution_path="per_sequence")[1].execution_path == "per_sequence"


@pytest.mark.parametrize(("is_first", "check"), [(False, "self-check"), (True, "compiling kernels, once; self-check")])
def test_progress_is_reported_before_the_engine_is_ready(
    is_first: bool, check: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, load = [is_first], factory.load

    def loading(*arguments: Any, **options: Any) -> LoadedModel:
        first[0] = False  # it compiles a library
        return load(*arguments, **options)

    monkeypatch.setattr(jit, "is_first_build", lambda: first[0])
    monkeypatch.setattr(factory, "load", loading)
    reports: list[Loading] = []
    load_engine(EngineOptions(str(models / "llama"), threads=1, kv_tokens=100), reports.append)
    assert [report.what for report in reports] == ["reading weights", check, "reserving the cache"]
    assert [report.fraction for report in reports] == sorted(report.fraction for report in reports)


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ({"kv_tokens": 100}, 7),
        ({"kv_tokens": 100, "block_size": 4}, 25),
        ({"max_sequences": 2}, 2 * CONTEXT // 16),
        ({"max_sequences": 3, "context_length": 32}, 6),
    ],
)
def test_the_cache_holds_kv_tokens_or_every_sequence_at_full_length(
    options: dict[str, Any], blocks: int, models: Path
) -> None:
    engine, _ = made(models / "llama", **options)
    assert engine._scheduler.pool.count == blocks


def test_the_cache_is_limited_to_a_share_of_the_free_memory(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "available_memory", lambda: 160_000)
    engine, _ = made(models / "llama")
    cache = engine._runner.cache  # type: ignore[attr-defined]
    assert engine._scheduler.pool.count == 40_000 // cache.bytes_per_block < 64 * CONTEXT // 16


def test_a_cache_that_does_not_fit_is_an_error(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "available_memory", lambda: 0)
    with pytest.raises(LoadError, match="The KV cache does not fit"):
        made(models / "llama")


@pytest.mark.parametrize(("context_length", "expected"), [(0, CONTEXT), (64, 64), (10_000, CONTEXT)])
def test_the_context_length_can_be_shortened_only(context_length: int, expected: int, models: Path) -> None:
    _, ready = made(models / "llama", context_length=context_length, max_sequences=2)
    assert (ready.context_length, ready.vocab_size) == (expected, VOCAB)


def test_a_step_has_a_token_for_every_sequence_and_without_chunks_the_longest_prompt(models: Path) -> None:
    engine, _ = made(models / "llama", step_tokens=4, max_sequences=8, kv_tokens=100)
    assert engine._scheduler._step_tokens == 8
    engine, ready = made(models / "rwkv", step_tokens=4, max_sequences=8, kv_tokens=64)
    assert engine._scheduler._step_tokens == ready.context_length + 8
    assert not engine._scheduler.pool.caching


def test_recurrent_states_share_the_memory_for_caches(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of LFM2 has the 3 last inputs of 48 channels in its convolution; a token has 2 * 2 * 12 numbers."""
    state, block = 4 * 3 * 48, 4 * 16 * 2 * 2 * 12
    monkeypatch.setattr(runners, "_cache_bytes", lambda *_: 8 * state + 10 * block)
    engine, ready = made(models / "lfm2", max_sequences=2)
    assert (ready.execution_path, ready.max_sequences) == ("packed", 2)
    assert engine._scheduler.pool.count == 10, "beside the states of 2 sequences and 4 snapshots, and 2 to spare"
    monkeypatch.setattr(runners, "_cache_bytes", lambda *_: 4 * state)
    assert made(models / "lfm2", max_sequences=64, kv_tokens=64)[1].max_sequences == 2, "half is for states"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"execution_path": "fast"}, "execution_path must be auto, packed or per_sequence, not 'fast'."),
        ({"max_sequences": -1}, "max_sequences must not be negative."),
        ({"step_tokens": -1}, "step_tokens must not be negative."),
        ({"threads": -1}, "threads must not be negative."),
        ({"max_waiting": -1}, "max_waiting must not be negative."),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError) as raised:
        load_engine(EngineOptions(str(tmp_path), **options), lambda _: None)
    assert str(raised.value) == why


def test_a_large_model_leaves_one_core_to_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    monkeypatch.setattr(factory, "physical_cores", lambda: 6)
    assert factory._threads(model, EngineOptions("")) == 1
    monkeypatch.setattr(factory, "_SMALL_PARAMETERS", 100)
    assert factory._threads(model, EngineOptions("")) == 5
    assert factory._threads(model, EngineOptions("", replica_count=3)) == 1
    monkeypatch.setattr(factory, "physical_cores", lambda: 1)
    assert factory._threads(model, EngineOptions("")) == 1
