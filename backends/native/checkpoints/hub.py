"""Models of the Hugging Face hub, fetched by huggingface_hub into its own cache: whole, resumed, safetensors only.

Nothing that could be run is fetched: no pickled weights and no Python files. huggingface_hub reads its own variables:
HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from backends.native.checkpoints.errors import CheckpointError

_ID = re.compile(r"^(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?$")
_TEXTS = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*", "*/config.json", "*/*.json")
_WEIGHTS = ("*.safetensors", "*/*.safetensors")
# Copies of the weights in other forms that repositories hold beside the one that is read.
_OTHERS = ("original/*", "onnx/*", "openvino/*", "consolidated*.safetensors", "*.fp16.safetensors")


class HubModel(msgspec.Struct, frozen=True):
    """A model of the hub: `owner/name`, and a branch, tag or commit."""

    name: str
    revision: str | None = None

    @property
    def short(self) -> str:
        """Its name without the owner."""
        return self.name.partition("/")[2]


def parse(reference: str) -> HubModel | None:
    """`owner/name` or `owner/name@revision`; None if `reference` is neither."""
    found = _ID.match(reference)
    return HubModel(found["name"], found["revision"]) if found else None


def find(model: HubModel) -> Path | None:
    """The model's folder in the cache of huggingface_hub; None if it was never fetched whole."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(model.name, revision=model.revision, local_files_only=True))
    except (LocalEntryNotFoundError, OSError, ValueError):
        return None
    return folder if any(folder.rglob("*.safetensors")) else None


def fetch(model: HubModel) -> Path:
    """The model's folder, fetched if it is not in the cache or not the newest; a progress bar is shown on a terminal.

    Raises:
        CheckpointError: it does not exist, needs access, has no safetensors, or the hub is not reached.
    """
    # Imported here: it takes a tenth of a second, and it reads its variables when it is imported.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f"'{model.name}'" + (f" at '{model.revision}'" if model.revision else "")
    try:
        # What lacks weights that are read is refused before anything is fetched.
        files = None if constants.HF_HUB_OFFLINE else _files(model)
        if files is not None and not any(name.endswith(".safetensors") for name in files):
            raise CheckpointError(f"the model {at} of the hub has no *.safetensors: {_instead(files)}")
        folder = snapshot_download(
            model.name, revision=model.revision, allow_patterns=[*_TEXTS, *_WEIGHTS], ignore_patterns=[*_OTHERS]
        )
    except GatedRepoError:
        raise CheckpointError(
            f"the model {at} of the hub is gated: accept its terms on its page, and set HF_TOKEN to a token of yours"
        ) from None
    except RevisionNotFoundError:
        raise CheckpointError(f"the model '{model.name}' of the hub has no revision '{model.revision}'") from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"there is no folder '{model.name}', and the hub has no model of this name (or it is private: set HF_TOKEN)"
        ) from None
    except LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"the hub is not reached ({error.__cause__})"
        raise CheckpointError(f"the model {at} of the hub is not in the cache, and {why}") from None
    except HfHubHTTPError as error:
        raise CheckpointError(f"the model {at} of the hub cannot be fetched: {error}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the model {at} of the hub cannot be fetched: {error}") from None
    return Path(folder)


def _files(model: HubModel) -> list[str] | None:
    """The names of the model's files; None if the hub is not reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]

    try:
        return [each.rfilename for each in HfApi().model_info(model.name, revision=model.revision).siblings or ()]
    except HfHubHTTPError:  # the hub's own answer
        raise
    except HTTPError:  # of whichever client library this version uses: no connection, or a timeout
        return None


def _instead(files: list[str]) -> str:
    """What a repository without safetensors holds, as the end of a sentence."""
    if ggufs := [name for name in files if name.endswith(".gguf")]:
        return f"download one of its GGUF files, {ggufs[0]} for instance, and name the file"
    if pickles := [name for name in files if name.endswith((".bin", ".pt", ".pth"))]:
        return f"its weights are pickled ({pickles[0]}), which can hold code and is not read"
    return "it holds no weights"
