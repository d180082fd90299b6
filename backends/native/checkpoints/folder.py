"""Whether the weights of a checkpoint folder can be read, decided before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from backends.native.checkpoints.errors import CheckpointError
from backends.native.checkpoints.quantization import read_quantization

# Weights that are executable code (pickle), or of other frameworks; the first that is found is named.
_UNREAD = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.nemo", "*.pickle", "*.pkl")


def check_folder(folder: Path) -> None:
    """Check that a folder is a checkpoint whose weights can be read.

    Raises:
        CheckpointError: it is not; the text says what is missing or not supported.
    """
    # Of sentence-transformers some have the encoder in a folder of its own, and say so in `modules.json`.
    inside = folder if (folder / "config.json").is_file() else folder / "0_Transformer"
    config = read_json(inside / "config.json")
    if config is None:
        raise CheckpointError(f"'{folder}' holds no config.json and no *.gguf: it is no checkpoint")
    if not any(inside.glob("*.safetensors")):
        unread = next((file for pattern in _UNREAD for file in sorted(inside.glob(pattern))), None)
        why = f"its weights are in {unread.name}, which is not read" if unread else "it has no weights"
        raise CheckpointError(f"'{folder}' holds no *.safetensors: {why}")
    read_quantization(config, str(folder))


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no file.

    Raises:
        CheckpointError: it is not JSON, or no object.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"'{file}' cannot be read: {error}") from None
