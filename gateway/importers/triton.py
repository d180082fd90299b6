"""Triton: a model repository, a folder of models with their `config.pbtxt`.

Models of the vLLM backend become native ones. Others stay with their Triton, which becomes a remote backend, if texts
go in and come out.

Source: triton-inference-server/server, docs/user_guide/model_configuration.md, and the README of vllm_backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backends.remote.kinds import SPOKEN_BY
from gateway.importers.draft import Draft, slug
from gateway.importers.fields import Fields, Left, UnreadableError, read_yaml
from gateway.importers.pbtxt import read_pbtxt
from gateway.importers.vllm import add_native, native_options

DEFAULT_URL = "http://127.0.0.1:8000"
_INPUT, _OUTPUT = "text_input", "text_output"
_ENGINE = "model.json"
_ADAPTERS = "multi_lora.json"


def read_triton(folder: Path, url: str = DEFAULT_URL) -> Draft:
    """Our configuration for a model repository.

    Args:
        folder: the repository.
        url: of the Triton that goes on serving what is not native.

    Raises:
        UnreadableError: the folder has no models.
    """
    folders = [each for each in sorted(folder.iterdir()) if (each / "config.pbtxt").is_file()]
    folders += [each for each in sorted(folder.iterdir()) if each not in folders and _engine(each) is not None]
    if not folders:
        raise UnreadableError("it has no folder with a config.pbtxt: it is no model repository")
    draft = Draft()
    for each in folders:
        try:
            _model(each, url, draft)
        except (UnreadableError, UnicodeDecodeError) as error:
            draft.left.append(Left(0, each.name, str(error)))
    return draft


def _model(folder: Path, url: str, draft: Draft) -> None:
    file = folder / "config.pbtxt"
    fields = read_pbtxt(file.read_text("utf-8")) if file.is_file() else Fields({})
    name = fields.take("name", str) or folder.name
    kind = fields.take("backend", str) or fields.take("platform", str) or ""
    fields.drop("platform")
    if (engine := _engine(folder)) is not None and kind in ("", "vllm", "python"):
        draft.left += (each._replace(place=f"{name}: {each.place}") for each in _native(name, engine, draft))
        # The tensors of the vLLM backend are those that every endpoint has.
        fields.drop("input", "output", "max_batch_size", "model_transaction_policy", "instance_group", "parameters")
    elif not _remote(fields, name, kind, url, draft):
        return
    fields.leave_rest()
    draft.left += (each._replace(place=f"{name}/config.pbtxt: {each.place}") for each in fields.left)


def _engine(folder: Path) -> Path | None:
    """The arguments of vLLM's engine in the model's newest version; None if it has none."""
    versions = [each for each in folder.iterdir() if each.name.isdigit()] if folder.is_dir() else []
    found = (each / _ENGINE for each in sorted(versions, key=lambda each: -int(each.name)))
    return next((each for each in found if each.is_file()), None)


def _native(name: str, engine: Path, draft: Draft) -> Iterator[Left]:
    fields = read_yaml(engine.read_text("utf-8"))
    fields.drop("disable_log_stats", "disable_log_requests")
    options = native_options(fields)
    if "model" not in options:
        raise UnreadableError(f"{_ENGINE} names no model")
    adapters = engine.parent / _ADAPTERS
    if adapters.is_file():
        options["lora_adapters"] = dict(read_yaml(adapters.read_text("utf-8")).values)
    add_native(draft, name, options, [])
    return (each._replace(place=f"{_ENGINE}: {each.place}") for each in fields.left)


def _remote(fields: Fields, name: str, kind: str, url: str, draft: Draft) -> bool:
    """Add a model that stays with its Triton; False, which is reported, if it takes or returns no text."""
    inputs, outputs = _names(fields, "input"), _names(fields, "output")
    fields.drop("max_batch_size", "model_transaction_policy", "instance_group", "parameters", "dynamic_batching")
    fields.drop("ensemble_scheduling", "sequence_batching", "default_model_filename", "optimization", "model_warmup")
    if _INPUT not in inputs or _OUTPUT not in outputs:
        tensors = f"{', '.join(sorted(inputs)) or 'none'} in, {', '.join(sorted(outputs)) or 'none'} out"
        why = f"no text goes in and out ({tensors}): its Triton goes on serving it to its other models"
        draft.left.append(Left(0, f"{name} ({kind or 'no backend'})", why))
        return False
    backend = draft.backend("triton-server", {"kind": SPOKEN_BY["tensorrt-llm"], "url": url})
    draft.comment(
        f"Models of other backends than vLLM stay with their Triton, at {url} (import it with --url otherwise)."
    )
    draft.endpoints[name] = {"served_entities": [{"name": slug(name), "backend": backend, "model": name}]}
    return True


def _names(fields: Fields, name: str) -> set[str]:
    fields.drop(name)
    tensors: Any = fields.values.get(name, [])
    tensors = tensors if isinstance(tensors, list) else [tensors]
    return {str(each.get("name")) for each in tensors if isinstance(each, dict)}
