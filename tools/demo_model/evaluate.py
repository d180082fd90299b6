"""Measure a checkpoint: ``python -m tools.demo_model.evaluate DIR`` prints exact-match accuracy per task.

Uses plain Hugging Face loading, template and ``generate``, so that it measures the weights and not the engine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from transformers import AutoTokenizer, LlavaForConditionalGeneration
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tools.demo_model.samples.chats import Chat
from tools.demo_model.samples.questions import QUESTIONNAIRE, Question

_BATCH = 100
_MAX_NEW_TOKENS = 96


class DemoModel:
    """A loaded checkpoint that answers greedily."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        """Load tokenizer, image processor and model from ``folder``, offline."""
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.image_processor = CLIPImageProcessorPil.from_pretrained(
            folder
        )  # the first releases of 5 find no other without torchvision
        self.model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval().to(device)

    def answers(self, prompts: Sequence[Chat | str]) -> list[str]:
        """Answer the prompts in batches; either all of them have images or none."""
        batches = (prompts[start : start + _BATCH] for start in range(0, len(prompts), _BATCH))
        return [answer for batch in batches for answer in self._answer_batch(batch)]

    def _answer_batch(self, prompts: Sequence[Chat | str]) -> list[str]:
        texts = [prompt if isinstance(prompt, str) else self._render(prompt) for prompt in prompts]
        inputs = self.tokenizer(texts, padding=True, return_tensors="pt")
        images = [image for prompt in prompts if isinstance(prompt, Chat) for image in prompt.images]
        if images:
            pixels = self.image_processor(images, return_tensors="pt")["pixel_values"]
            inputs["pixel_values"] = pixels.to(self.model.dtype)
        with torch.inference_mode():
            ids = self.model.generate(**inputs.to(self.model.device), max_new_tokens=_MAX_NEW_TOKENS, do_sample=False)
        new = ids[:, inputs["input_ids"].shape[1] :]
        return list(self.tokenizer.batch_decode(new, skip_special_tokens=True))

    def _render(self, chat: Chat) -> str:
        text: str = self.tokenizer.apply_chat_template(
            chat.messages, tools=chat.tools, tokenize=False, add_generation_prompt=True
        )
        image_token = self.tokenizer.decode(self.model.config.image_token_index)
        return text.replace(image_token, image_token * self.model.config.image_seq_length)


def draw_questions(task: str, seed: int, samples: int) -> list[Question]:
    """Draw ``samples`` questions of one task; each task has its own stream of random numbers."""
    rng = Random(f"{seed}:evaluation:{task}")
    return [QUESTIONNAIRE[task](rng) for _ in range(samples)]


def accuracy(model: DemoModel, questions: Sequence[Question]) -> float:
    """The share of answers that match exactly."""
    answers = model.answers([question.prompt for question in questions])
    right = [answer == question.answer for answer, question in zip(answers, questions, strict=True)]
    return sum(right) / len(right)


def main() -> None:
    """The command line; prints a Markdown table."""
    parser = argparse.ArgumentParser(description="Measure a demo model checkpoint.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=200, help="questions per task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16, as the weights are stored")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = DemoModel(options.folder, torch.bfloat16 if options.bfloat16 else torch.float32, options.device)
    sys.stdout.write(f"| task | exact answers of {options.samples} |\n|---|---|\n")
    for task in QUESTIONNAIRE:
        share = accuracy(model, draw_questions(task, options.seed, options.samples))
        sys.stdout.write(f"| {task} | {share:.1%} |\n")


if __name__ == "__main__":
    main()
