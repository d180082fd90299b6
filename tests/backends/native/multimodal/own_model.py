"""Run by the examples' test: a module registered by an entry point gives the logits of transformers' LLaVA."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlavaProcessor
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.factory import load_engine
from backends.native.engine.loading.weights import load
from backends.native.engine.multimodal.profiling import make_embedder
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.multimodal.prompts import load_processor
from backends.native.protocol.engine_options import EngineOptions
from backends.native.protocol.messages import Submit
from tests.backends.native.multimodal.tiny import IMAGE, Checkpoint, save_llava

STEP = 5


def main() -> None:
    torch.manual_seed(0)
    llava = Checkpoint(save_llava(Path(sys.argv[1])))
    items = [llava.item(1), llava.item(2)]
    prompt = [5, IMAGE, 7, IMAGE]
    expected = llava.plain(llava.processor.apply(prompt, items), items)

    folder = renamed(Path(sys.argv[1]))
    loaded = load(str(folder))
    assert type(loaded.multimodal).__name__ == "YourModelForImage2Seq"
    embedder = make_embedder(loaded, str(folder), 1000, 256)
    assert embedder is not None
    inputs = load_processor(str(folder)).apply(prompt, items)
    runner = PackedRunner(loaded.model, KVCache(-(-len(inputs.prompt_token_ids) // STEP), STEP), embedder=embedder)
    found = logits(runner, inputs)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    assert (logits(runner, load_processor(str(folder)).apply(prompt, items[::-1])) - expected).abs().max() > 1e-2

    _, ready = load_engine(EngineOptions(model=str(folder), context_length=256), lambda _: None)
    assert ready.image_tokens == 9
    assert ready.execution_path == "packed"
    print("equal")


def renamed(folder: Path) -> Path:
    """The folder, now of the example's class; with the processor's files, and a key that the guide's code reads."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["YourModelForImage2Seq"], "image_size": config["vision_config"]["image_size"]}
    (folder / "config.json").write_text(json.dumps(config))
    processor: Any = LlavaProcessor(
        AutoImageProcessor.from_pretrained(folder, backend="pil"),
        AutoTokenizer.from_pretrained(folder),
        patch_size=8,
        vision_feature_select_strategy="default",
    )
    processor.save_pretrained(folder)
    return folder


def logits(runner: PackedRunner, inputs: MultiModalInputs) -> Any:
    """Of every position, in steps that cut the images."""
    length = len(inputs.prompt_token_ids)
    submit = Submit(0, inputs.prompt_token_ids, 1, prompt_logprobs=0, features=inputs.features)
    sequence = Sequence(0, submit, 0)
    sequence.blocks.extend(range(-(-length // STEP)))
    found = []
    for start in range(0, length, STEP):
        count = min(STEP, length - start)
        with torch.inference_mode():
            found.append(runner.run([Work(sequence, start, count, samples=start + count == length)]))
    return torch.cat(found)


if __name__ == "__main__":
    main()
