"""Models of the hub: fetched whole from a real server, resumed, offline if set so, refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backends.native.demo import WEIGHTS
from tests.backends.native.checkpoints.hub_server import COMMITS, GATED, hub

DEMO = {path.name: path.read_bytes() for path in WEIGHTS.iterdir()}
MODELS = {
    "owner/demo": DEMO | {"model.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"x"},
    "owner/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
    "owner/ggufs": {"a.Q4_K_M.gguf": b"GGUF"},
    "owner/texts": {"config.json": b"{}"},
    "owner/large": {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 96 * 1024},
    GATED: DEMO,
}
SCRIPT = """
import json, sys
from backends.base import NotPrepared
from backends.native.checkpoints.reference import prepare
for name in sys.argv[1:]:
    try:
        print(json.dumps({"folder": prepare(name, lambda said: None)}))
    except NotPrepared as error:
        print(json.dumps({"error": str(error)}))
"""


def run(endpoint: str, home: Path, *names: str, **more: str) -> list[dict[str, str]]:
    """What `prepare` gives for each name, in a process of its own: huggingface_hub reads its variables once."""
    variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        env={**os.environ, **variables, "HF_HUB_DOWNLOAD_TIMEOUT": "2", "HF_HUB_ETAG_TIMEOUT": "2", **more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_model_is_fetched_without_code_and_found_offline(tmp_path: Path) -> None:
    with hub(MODELS) as server:
        fetched, older = run(server.url, tmp_path, "owner/demo", "owner/demo@older")
        sent = {name for name, _ in server.sent}
    folder = Path(fetched["folder"])
    assert folder.name == COMMITS["main"]
    assert Path(older["folder"]).name == COMMITS["older"]
    names = set(DEMO) - {"README.md"}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == names == sent
    assert (folder / "model.safetensors").read_bytes() == DEMO["model.safetensors"]
    # The server is gone: without the network, and with HF_HUB_OFFLINE, what was fetched is found.
    assert run(server.url, tmp_path, "owner/demo") == [fetched]
    found, absent = run(server.url, tmp_path, "owner/demo", "owner/other", HF_HUB_OFFLINE="1")
    assert found == fetched
    assert absent == {"error": "the model 'owner/other' of the hub is not in the cache, and HF_HUB_OFFLINE is set"}
    assert "is not in the cache, and the hub is not reached" in run(server.url, tmp_path, "owner/new")[0]["error"]


@pytest.mark.slow
def test_a_download_that_was_cut_is_resumed(tmp_path: Path) -> None:
    with hub(MODELS) as server:
        # The client writes 10 MB at a time.
        server.cut = {"model.safetensors": 15_000_000}
        (fetched,) = run(server.url, tmp_path, "owner/large")
        starts = [start for name, start in server.sent if name == "model.safetensors"]
    assert starts[0] == 0
    assert 0 < starts[1] <= 15_000_000
    content = Path(fetched["folder"], "model.safetensors").read_bytes()
    assert content == MODELS["owner/large"]["model.safetensors"]


@pytest.mark.slow
def test_what_cannot_be_fetched_is_refused_by_name(tmp_path: Path) -> None:
    names = (GATED, "owner/absent", "owner/demo@nowhere", "owner/pickled", "owner/ggufs", "owner/texts")
    with hub(MODELS) as server:
        errors = [found["error"] for found in run(server.url, tmp_path, *names)]
        sent = [name for name, _ in server.sent]
    assert errors == [
        "the model 'owner/gated' of the hub is gated: accept its terms on its page, and set HF_TOKEN to a token of "
        "yours",
        "there is no folder 'owner/absent', and the hub has no model of this name (or it is private: set HF_TOKEN)",
        "the model 'owner/demo' of the hub has no revision 'nowhere'",
        "the model 'owner/pickled' of the hub has no *.safetensors: its weights are pickled (pytorch_model.bin), "
        "which can hold code and is not read",
        "the model 'owner/ggufs' of the hub has no *.safetensors: download one of its GGUF files, a.Q4_K_M.gguf for "
        "instance, and name the file",
        "the model 'owner/texts' of the hub has no *.safetensors: it holds no weights",
    ]
    assert sent == []
