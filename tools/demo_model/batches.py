"""Training batches: token ids through the shipped chat template, labels on answers only.

Rows are right-padded without an attention mask: attention is causal, so that tokens left of the padding never attend to
it, and padding has no label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tools.demo_model.model import IMAGE_TOKENS
from tools.demo_model.samples.chats import Chat, Completion
from tools.demo_model.samples.mix import Mix, image_sample, text_sample
from tools.demo_model.tokenizer import ASSISTANT, END, IMAGE, PAD, SPECIAL_TOKENS, VOCABULARY_SIZE

IGNORED = -100  # the label that cross_entropy ignores
_POOL = 16  # text batches drawn at once and sorted by length, so that they need little padding

Labelled = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True)
class Batch:
    """``ids`` and ``labels`` are ``[B, T]``; ``pixels`` ``[P, 3, H, W]`` holds the rows' images in order."""

    kind: Literal["copying", "picture", "text"]
    ids: Tensor
    labels: Tensor
    pixels: Tensor | None


def training_batches(tokenizer: PreTrainedTokenizerFast, rng: Random, mix: Mix, size: int) -> Iterator[Batch]:
    """Draw batches without end; each has samples of one kind: copying, images or text."""
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    pool: list[list[Labelled]] = []
    while True:
        if rng.random() < mix.copying:
            yield copying_batch(generator, size)
        elif rng.random() < mix.images:
            chats = [image_sample(rng) for _ in range(size)]
            pixels = to_pixels([image for chat in chats for image in chat.images])
            yield collate([label(tokenizer, chat) for chat in chats], pixels)
        else:
            pool = pool or _text_pool(tokenizer, rng, mix, size)
            yield collate(pool.pop(), None)


def copying_batch(generator: torch.Generator, size: int) -> Batch:
    """``prefix S separator S`` of random tokens, one shape for all rows; only the second S is learned."""

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    length, before, between = (int(draw(low, high)) for low, high in ((4, 33), (0, 8), (1, 4)))
    text = draw(len(SPECIAL_TOKENS), VOCABULARY_SIZE, size, length)
    prefix = draw(len(SPECIAL_TOKENS), VOCABULARY_SIZE, size, before)
    separator = draw(END, IMAGE, size, between)  # the control tokens that stand between messages
    ids = torch.cat([prefix, text, separator, text], dim=1)
    labels = torch.full_like(ids, IGNORED)
    labels[:, 1 - length :] = text[:, 1:]
    return Batch("copying", ids, labels, None)


def label(tokenizer: PreTrainedTokenizerFast, sample: Chat | Completion) -> Labelled:
    """Token ids of a sample with image tokens expanded, and its labels: the assistant's tokens and their end."""
    if isinstance(sample, Completion):
        prompt, text = (tokenizer.encode(part) for part in (sample.prompt, sample.text))
        return [*prompt, *text, END], [IGNORED] * len(prompt) + [*text, END]
    rendered = tokenizer.apply_chat_template(sample.messages, tools=sample.tools, tokenize=False)
    learned = (
        rendered.index(sample.given, rendered.rindex(SPECIAL_TOKENS[ASSISTANT])) + len(sample.given)
        if sample.given
        else 0
    )
    encoded = tokenizer(rendered, return_offsets_mapping=True)
    ids: list[int] = []
    labels: list[int] = []
    answering = False
    for token, (start, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        run = [token] * (IMAGE_TOKENS if token == IMAGE else 1)
        ids += run
        labels += run if answering and start >= learned else [IGNORED] * len(run)
        answering = token != END and (answering or token == ASSISTANT)
    return ids, labels


def collate(samples: Sequence[Labelled], pixels: Tensor | None) -> Batch:
    """Pad samples to one length."""
    length = max(len(ids) for ids, _ in samples)
    rows = [ids + [PAD] * (length - len(ids)) for ids, _ in samples]
    labels = [labels + [IGNORED] * (length - len(labels)) for _, labels in samples]
    kind: Literal["picture", "text"] = "text" if pixels is None else "picture"
    return Batch(kind, torch.tensor(rows), torch.tensor(labels), pixels)


def to_pixels(images: Sequence[Image.Image]) -> Tensor:
    """Pixel values [images, 3, height, width], as the image processor makes them of images of the model's own size."""
    values = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
    return values.permute(0, 3, 1, 2).float() / 127.5 - 1


def _text_pool(tokenizer: PreTrainedTokenizerFast, rng: Random, mix: Mix, size: int) -> list[list[Labelled]]:
    samples = [label(tokenizer, text_sample(rng, mix)) for _ in range(_POOL * size)]
    samples.sort(key=lambda sample: len(sample[0]))
    batches = [samples[start : start + size] for start in range(0, len(samples), size)]
    rng.shuffle(batches)
    return batches
