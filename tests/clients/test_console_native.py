"""What only a native model can in the console: see images, follow a schema, sleep, and load LoRA adapters."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.conftest import serving
from tests.clients.console import MARKS, Console, ask, image_file, log_in, log_out
from tests.clients.visitor import Visitor

pytestmark = MARKS

CONFIG = """
[server]
admin_keys_env = "CONSOLE_ADMIN_KEYS"
state_file = "{folder}/state.json"
[backends.native]
kind = "native"
lora_folder = "{folder}/lora"
[endpoints.images]
served_entities = [{{ name = "sees", backend = "native" }}]
"""
WEIGHTS = Path(__file__).parents[2] / "backends/native/demo/weights/model.safetensors"


@pytest.fixture(scope="module")
def console(opened: Console, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("native")
    write_adapter(folder / "lora/sql")
    (folder / "gateway.toml").write_text(CONFIG.format(folder=folder))
    with serving(folder / "log", "--config", str(folder / "gateway.toml"), env={"CONSOLE_ADMIN_KEYS": "root"}) as url:
        opened.open(url)
        yield opened
        assert opened.page.errors == []


def write_adapter(folder: Path) -> None:
    """A LoRA adapter of rank 1 that changes nothing, for one layer of the bundled model, as peft writes it."""
    with WEIGHTS.open("rb") as file:
        layers = json.loads(file.read(*struct.unpack("<Q", file.read(8))))
    name = min(name for name in layers if name.endswith("self_attn.q_proj.weight") and "vision" not in name)
    outputs, inputs = layers[name]["shape"]
    # The checkpoint has the names of an earlier transformers.
    layer = f"base_model.model.{name.removesuffix('.weight').replace('language_model.model', 'model.language_model')}"
    header, at = {}, 0
    for part, shape in ((f"{layer}.lora_A.weight", [1, inputs]), (f"{layer}.lora_B.weight", [outputs, 1])):
        size = 4 * shape[0] * shape[1]
        header[part] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    written = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(written)) + written + bytes(at))
    adapted = r".*language_model.*layers\.0\.self_attn\.q_proj"
    config = {
        "peft_type": "LORA",
        "r": 1,
        "lora_alpha": 1,
        "target_modules": adapted,
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_a_newcomer_asks_with_an_image(console: Console, tmp_path: Path) -> None:
    me = Visitor(console.page)
    me.click("link", "Chat")
    me.click("button", "New conversation")
    me.choose("Endpoint", "images")
    me.attach("Attach an image", image_file(tmp_path))
    me.find("image", "Image 1 to send")
    me.write("Message", "What is in the image?")
    me.click("button", "Send")
    me.find("image", "Attached image 1")
    me.sees("Answered by")
    assert "failed" not in console.text(".log")


def test_images_are_dropped_and_pasted_and_other_files_are_not(console: Console, tmp_path: Path) -> None:
    console.view("Chat")
    console.click("New conversation")
    file = image_file(tmp_path)
    console.page.drop(file, ".log")
    shown = "document.querySelectorAll('.previews img').length"
    console.page.until(f"{shown} === 1")
    data = json.dumps(base64.b64encode(file.read_bytes()).decode())
    console.page.run(
        f"{{ const bytes = Uint8Array.from(atob({data}), (each) => each.charCodeAt(0));"
        "const clipboardData = new DataTransfer();"
        "clipboardData.items.add(new File([bytes], 'a.png', { type: 'image/png' }));"
        "control('Message').dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true })); }"
    )
    console.page.until(f"{shown} === 2")
    (tmp_path / "note.txt").write_text("x")
    console.page.drop(tmp_path / "note.txt", ".log")
    console.reads("note.txt is not an image. Only images can be attached.")
    console.click("Dismiss")
    console.check_layout()
    console.click("Remove image 2")
    console.page.until(f"{shown} === 1")
    console.click("Remove image 1")
    console.page.until(f"{shown} === 0")


def test_an_answer_follows_a_schema(console: Console) -> None:
    sky = {"enum": ["blue", "grey"]}
    schema = {"type": "object", "properties": {"sky": sky}, "required": ["sky"], "additionalProperties": False}
    console.click("Settings")
    console.fill("JSON schema of the answer", "{")
    assert console.page.run("control('JSON schema of the answer').validationMessage").startswith("This is no JSON")
    console.fill("JSON schema of the answer", json.dumps(schema))
    ask(console, "images", "How is the sky?")
    console.reads("Answered by")
    assert json.loads(console.text(".message.assistant pre.json"))["sky"] in sky["enum"]
    console.fill("JSON schema of the answer", "")
    console.click("Settings")


def test_a_model_sleeps_and_wakes_and_loads_an_adapter(console: Console) -> None:
    console.view("Models")
    console.reads("Log in with an admin key")
    log_in(console, "root")
    console.view("Models")
    console.click("Sleep")
    console.reads("asleep, level 1", "[aria-label=native]")
    console.reads("native sleeps; its caches are freed.")
    console.click("Wake up")
    console.page.until("!!clickable('Deep sleep')")
    console.click("Load a LoRA adapter")
    console.fill("Name", "sql")
    console.fill("Folder", "sql")
    console.check_layout()
    console.click("Load")
    console.page.until("!!clickable('Unload sql')")
    console.reads("sql was loaded.")
    console.view("Chat")
    console.fill("Endpoint", "sql (LoRA)")
    console.view("Models")
    console.click("Unload sql")
    console.page.until("!clickable('Unload sql')")
    while console.page.run("document.querySelectorAll('#notices .notice').length"):
        console.click("Dismiss")
    log_out(console)
