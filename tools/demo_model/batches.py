"""Training batches: token ids through the shipped chat template, labels on answers only.

Rows are right-padded without an attention mask: attention is causal, so that tokens left of the padding never attend to
it, and padding has no label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

import numpy as np
import structlog
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tools.demo_model.masks import WORDS, AnswerMasks, Mask
from tools.demo_model.model import IMAGE_TOKENS
from tools.demo_model.samples.chats import Chat, Completion
from tools.demo_model.samples.mix import Mix, image_sample, text_sample
from tools.demo_model.tokenizer import ASSISTANT, END, IMAGE, PAD, SPECIAL_TOKENS, VOCABULARY_SIZE

log = structlog.get_logger()

IGNORED = -100  # the label that cross_entropy ignores
_POOL = 512  # text samples drawn at once and sorted by length, so that they need little padding
_ANY = np.full(WORDS, -1, np.int32)


class Labelled(NamedTuple):
    """A sample's token ids and labels, and what its grammar allows, by place; any token elsewhere."""

    ids: list[int]
    labels: list[int]
    allowed: Mapping[int, Mask] = {}


@dataclass(frozen=True, slots=True)
class Batch:
    """``ids`` and ``labels`` are ``[B, T]``; ``pixels`` ``[P, 3, H, W]`` holds the rows' images in order.

    ``allowed`` ``[L, WORDS]`` int32 has a mask for each of the labels in the order of rows, if grammars held some.
    """

    kind: Literal["copying", "picture", "text"]
    ids: Tensor
    labels: Tensor
    pixels: Tensor | None
    allowed: Tensor | None = None


def training_batches(tokenizer: PreTrainedTokenizerFast, rng: Random, mix: Mix, size: int) -> Iterator[Batch]:
    """Draw batches without end; each has samples of one kind: copying, images or text."""
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    masks = AnswerMasks(tokenizer)
    pool: list[list[Labelled]] = []
    while True:
        if rng.random() < mix.copying:
            yield copying_batch(generator, size)
        elif rng.random() < mix.images:
            chats = [image_sample(rng) for _ in range(size)]
            pixels = to_pixels([image for chat in chats for image in chat.images])
            yield collate([label(tokenizer, chat, masks) for chat in chats], pixels)
        else:
            pool = pool or _text_pool(tokenizer, rng, mix, size, masks)
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


def label(tokenizer: PreTrainedTokenizerFast, sample: Chat | Completion, masks: AnswerMasks) -> Labelled:
    """Token ids of a sample with image tokens expanded, and its labels: the assistant's tokens and their end.

    Of an answer that a grammar holds, only the places have labels at which the grammar leaves a choice.
    """
    if isinstance(sample, Completion):
        prompt, text = (tokenizer.encode(part) for part in (sample.prompt, sample.text))
        return Labelled([*prompt, *text, END], [IGNORED] * len(prompt) + [*text, END])
    rendered = tokenizer.apply_chat_template(sample.messages, tools=sample.tools, tokenize=False)
    ids: list[int] = []
    labels: list[int] = []
    answering = False
    for token in tokenizer.encode(rendered):
        run = [token] * (IMAGE_TOKENS if token == IMAGE else 1)
        ids += run
        labels += run if answering else [IGNORED] * len(run)
        answering = token != END and (answering or token == ASSISTANT)
    if sample.held is None:
        return Labelled(ids, labels)
    start = len(ids) - ids[::-1].index(ASSISTANT)
    allowed = {start + place: mask for place, mask in masks.choices(sample.held, ids[start:]).items()}
    return Labelled(ids, [token if place in allowed else IGNORED for place, token in enumerate(ids)], allowed)


def collate(samples: Sequence[Labelled], pixels: Tensor | None) -> Batch:
    """Pad samples to one length."""
    length = max(len(sample.ids) for sample in samples)
    rows = [sample.ids + [PAD] * (length - len(sample.ids)) for sample in samples]
    labels = [sample.labels + [IGNORED] * (length - len(sample.labels)) for sample in samples]
    allowed = None
    if any(sample.allowed for sample in samples):
        places = (
            (sample, place) for sample in samples for place, token in enumerate(sample.labels) if token != IGNORED
        )
        allowed = torch.from_numpy(np.stack([sample.allowed.get(place, _ANY) for sample, place in places]))
    kind: Literal["picture", "text"] = "text" if pixels is None else "picture"
    return Batch(kind, torch.tensor(rows), torch.tensor(labels), pixels, allowed)


def to_pixels(images: Sequence[Image.Image]) -> Tensor:
    """Pixel values [images, 3, height, width], as the image processor makes them of images of the model's own size."""
    values = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
    return values.permute(0, 3, 1, 2).float() / 127.5 - 1


def _text_pool(
    tokenizer: PreTrainedTokenizerFast, rng: Random, mix: Mix, size: int, masks: AnswerMasks
) -> list[list[Labelled]]:
    count = max(1, _POOL // size) * size
    samples = [_fitting(tokenizer, rng, mix, masks) for _ in range(count)]
    samples.sort(key=lambda sample: len(sample.ids))
    batches = [samples[start : start + size] for start in range(0, len(samples), size)]
    rng.shuffle(batches)
    return batches


def _fitting(tokenizer: PreTrainedTokenizerFast, rng: Random, mix: Mix, masks: AnswerMasks) -> Labelled:
    """Label a drawn sample; one that its grammar does not allow is reported and drawn again, for hours may be lost."""
    while True:
        sample = text_sample(rng, mix)
        try:
            return label(tokenizer, sample, masks)
        except ValueError as error:
            log.warning("sample.refused", why=str(error), sample=sample)
