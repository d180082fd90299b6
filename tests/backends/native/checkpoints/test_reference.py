"""What `model` may name, and by which words everything else is refused before anything starts."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from backends.native.checkpoints import gguf
from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.reference import check, check_options, names_of, prepare, prepare_options
from backends.native.demo import WEIGHTS
from tests.backends.native.checkpoints.gguf_files import write_llama
from tests.missing_tools import needs_engine


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERLINGUA_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "models"


def test_a_folder_is_itself_wherever_it_is_named_from() -> None:
    assert prepare(str(WEIGHTS), print) == str(WEIGHTS)
    Path("here").symlink_to(WEIGHTS)
    assert prepare("here", print) == str(WEIGHTS.resolve())
    assert names_of("here") == (WEIGHTS.name,)
    assert prepare_options({"kind": "native"}, print, fetch=True) == {"kind": "native"}
    check_options({"kind": "native"})
    drafting = {"model": "here", "draft_model": "here"}
    assert prepare_options(drafting, print, fetch=True) == dict.fromkeys(drafting, str(WEIGHTS.resolve()))
    assert prepare_options({"draft_model": "mtp"}, print, fetch=True) == {"draft_model": "mtp"}
    with pytest.raises(CheckpointError, match="nowhere"):
        check_options({"model": "here", "draft_model": "./nowhere"})


def test_names_are_the_folders_the_files_and_the_hubs() -> None:
    Path("x-q4.gguf").touch()
    assert names_of("x-q4.gguf") == ("x-q4",)
    assert names_of("smollm2") == ("smollm2",)
    assert names_of("Qwen/Qwen2.5-0.5B-Instruct@main") == ("Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct")


def folder(files: Mapping[str, object]) -> str:
    Path("m").mkdir()
    for name, content in files.items():
        Path("m", name).write_text(content if isinstance(content, str) else json.dumps(content))
    return "m"


PLAIN = {"config.json": {"model_type": "llama"}, "model.safetensors": ""}


def quantized(**config: object) -> dict[str, object]:
    return PLAIN | {"config.json": {"quantization_config": config}}


def auto_round(**config: object) -> dict[str, object]:
    return quantized(quant_method="auto-round", **config)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "holds no config.json and no *.gguf: it is no checkpoint"),
        ({"model.safetensors": ""}, "holds no config.json"),
        ({"config.json": "{"}, "config.json' cannot be read"),
        ({"config.json": {}}, "holds no *.safetensors: it has no weights"),
        ({"config.json": {}, "pytorch_model.bin": ""}, "its weights are in pytorch_model.bin, which is not read"),
        ({"a.gguf": "GGUF", "b.gguf": "GGUF"}, "holds 2 models: name one of the files a.gguf, b.gguf"),
        ({"a.gguf": "GGUF"}, "is cut"),
        (quantized(quant_method="hqq"), "is quantized by 'hqq', which is not read: awq, gptq"),
        (quantized(quant_method="awq", bits=3), "is quantized by awq in 3 bits, which is not read"),
        (quantized(quant_method="awq", version="gemv"), "is quantized by awq in the form 'gemv'"),
        (quantized(quant_method="gptq", bits=3), "is quantized by gptq in 3 bits"),
        (quantized(quant_method="gptq", bits=4, checkpoint_format="marlin"), "by gptq in the form 'marlin'"),
        (quantized(quant_method="fp8", fmt="e5m2"), "by fp8 in the form 'e5m2'"),
        (quantized(quant_method="torchao", quant_type={"default": {"_type": "Int4WeightOnlyConfig"}}), "by torchao in"),
        (auto_round(bits=3), "by auto-round in 3 bits"),
        (auto_round(bits=4, packing_format="auto_round:llm_compressor"), "in the form 'auto_round:llm_compressor'"),
        (auto_round(bits=4, data_type="mx_fp"), "by auto-round as 'mx_fp'"),
        (auto_round(bits=4, rotation_config={"hadamard_type": "hadamard"}), "by auto-round with rotations"),
        (
            quantized(quant_method="compressed-tensors", config_groups={"g": {"format": "nvfp4-pack-quantized"}}),
            "by compressed-tensors in the form 'nvfp4-pack-quantized'",
        ),
        (
            quantized(quant_method="compressed-tensors", sparsity_config={"format": "sparse-24-bitmask"}),
            "with sparse weights ('sparse-24-bitmask')",
        ),
        (quantized(load_in_4bit=True, bnb_4bit_quant_storage="bfloat16"), "with 4-bit weights kept as bfloat16"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused(files: Mapping[str, object], why: str) -> None:
    name = folder(files)
    for act in (check, lambda model: prepare(model, print)):
        with pytest.raises(CheckpointError) as raised:
            act(name)
        assert why in str(raised.value)


@pytest.mark.parametrize("name", ["nowhere", "./no/where", "/no/where", "a/b/c", "~/model"])
def test_what_is_nowhere_is_refused_with_what_could_be_named(name: str) -> None:
    hint = " (the shell alone knows ~: write the whole path)" if name.startswith("~") else ""
    for act in (check, lambda model: prepare(model, print)):
        with pytest.raises(CheckpointError) as raised:
            act(name)
        assert str(raised.value) == (
            f"there is no folder or file '{name}'{hint}; a model is a folder, a GGUF file, one of smollm2, minilm, "
            "or owner/name of the hub"
        )


@pytest.mark.slow
def test_what_was_not_fetched_is_not_fetched_at_a_reload() -> None:
    for name in ("smollm2", "owner/unknown"):
        check(name)
        with pytest.raises(CheckpointError, match=f"is not on this machine: fetch it with 'gateway models get {name}'"):
            prepare(name, print, fetch=False)


@pytest.mark.slow
def test_a_gguf_file_becomes_a_folder_once_a_version(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    file = write_llama(Path("tiny.gguf"))
    made = prepare("tiny.gguf", said.append)
    assert said == ["Reading tiny.gguf (the first time takes up to a minute) ..."]
    assert Path(made).parent == models
    assert {path.name for path in Path(made).iterdir()} >= {"config.json", "tokenizer.json", "generation_config.json"}
    conversions: list[Path] = []
    monkeypatch.setattr(gguf, "_make", lambda file, _: conversions.append(file))
    assert prepare("tiny.gguf", print) == made
    assert conversions == []
    # A folder with one file is that file; another path or another time of change is another file.
    Path("folder").mkdir()
    moved = file.rename("folder/tiny.gguf")
    assert prepare("folder", print) != made
    os.utime(moved, (0, 0))
    prepare("folder", print)
    assert conversions == [moved.resolve()] * 2


@needs_engine
def test_a_file_that_cannot_be_converted_is_refused_by_the_converters_words() -> None:
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    key, value = b"general.architecture", b"llama"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    Path("bare.gguf").write_bytes(header + pair)
    with pytest.raises(CheckpointError, match=r"/bare\.gguf has no vocabulary$"):
        prepare("bare.gguf", print)
