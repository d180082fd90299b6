"""Input embeddings of a step's work with images; each image is encoded once while the cache holds it.

The cache (LRU) bounds embeddings by their number. A sequence keeps its images' arrays, so an image that the cache has
evicted is encoded again: eviction costs time and is never wrong.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.multimodal.inputs import EMBEDDINGS
from backends.native.multimodal.interfaces import SupportsMultiModal, merge_by_mask
from backends.native.protocol.messages import Feature

Positions = tuple[Tensor, int]
"""A prompt's positions, [3, tokens], and what is added to the index of later tokens for theirs."""


class EncoderCache:
    """Embeddings of images by content: `capacity` of them, or one image if that alone has more."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: OrderedDict[bytes, Tensor] = OrderedDict()
        self._held = 0

    def get(self, identifier: bytes) -> Tensor | None:
        """An image's embeddings, [tokens, hidden]."""
        found = self._items.get(identifier)
        if found is not None:
            self._items.move_to_end(identifier)
        return found

    def put(self, identifier: bytes, embeddings: Tensor) -> None:
        """Keep an image's embeddings, and evict the least recently used for them."""
        self._items[identifier] = embeddings
        self._held += len(embeddings)
        # The image just added stays, even if it alone exceeds the capacity: the next chunk of its prompt needs it
        # again.
        while self._held > self._capacity and len(self._items) > 1:
            self._held -= len(self._items.popitem(last=False)[1])


class Embedder:
    """Makes input embeddings and positions for works with images.

    Args:
        model: the multimodal model.
        capacity: the most embeddings that are kept.
        worst: the image with the most tokens, where their number is bounded.
    """

    def __init__(self, model: SupportsMultiModal, capacity: int, worst: Feature | None = None) -> None:
        self.capacity = capacity
        self.worst = worst
        self.unchunked = model.unchunked
        self._model = model
        self._device = model.get_language_model().device
        self._positions: dict[Sequence, Positions | None] = {}
        self.cache = EncoderCache(capacity)

    def embed(self, ids: Tensor, works: Seq[Work]) -> Tensor | None:
        """[1, tokens, hidden] for the packed `ids` [1, tokens] of `works`; None if no image is among them."""
        # `first` is where a work's tokens begin in the pack. Rows are collected in the order of the mask's True places,
        # in which models scatter them.
        mask = torch.zeros(ids.shape[1], dtype=torch.bool)
        rows: list[Tensor] = []
        first = 0
        for work in works:
            for feature in work.sequence.request.features:
                found = self._part(feature, work)
                if found is not None:
                    where, embeddings = found
                    mask[[first + place for place in where]] = True
                    rows.append(embeddings)
            first += work.count
        self._model.deeper = None
        # No image in this step, as in every decode: the runner passes ids, and the model makes the embeddings itself.
        if not rows:
            return None
        text, is_image = self._model.get_input_embeddings(ids), mask.unsqueeze(0).to(self._device)
        hidden = text.shape[-1]
        # Rows are longer where features enter deeper layers, too.
        if rows[0].shape[-1] > hidden:
            deeper = torch.cat([each[:, hidden:] for each in rows]).to(text.dtype)
            self._model.deeper = is_image, torch.split(deeper, hidden, dim=-1)
            rows = [each[:, :hidden] for each in rows]
        return merge_by_mask(text, rows, is_image)

    def encode(self, feature: Feature) -> Tensor:
        """An image's embeddings, [tokens, hidden], from the cache or the model's encoder."""
        found = self.cache.get(feature.identifier)
        if found is None:
            fields = self._fields(feature)
            # Embeddings that the client sent: the worker has checked their shape and number.
            made = [fields[EMBEDDINGS]] if EMBEDDINGS in fields else self._model.get_multimodal_embeddings(**fields)
            if made is None:
                raise ValueError("the model makes no embeddings of an image's fields")
            found = made[0]
            self.cache.put(feature.identifier, found)
        return found

    def positions(self, works: Seq[Work]) -> Tensor | None:
        """[3, tokens] for the packed `works`; None if every token's position is its index."""
        found = [self._sequence_positions(work.sequence) for work in works]
        if all(each is None for each in found):
            return None
        parts = [_positions(work, each) for work, each in zip(works, found, strict=True)]
        return torch.cat(parts, dim=1).to(self._device)

    def decode_positions(self, works: Seq[Work]) -> array[int]:
        """[works], of a token behind the prompt each: equal in all three dimensions."""
        found = [self._sequence_positions(work.sequence) for work in works]
        return array("q", [work.start + (each[1] if each else 0) for work, each in zip(works, found, strict=True)])

    def forget(self, sequence: Sequence) -> None:
        """Drop the positions of a sequence that ended or was preempted."""
        self._positions.pop(sequence, None)

    def _sequence_positions(self, sequence: Sequence) -> Positions | None:
        if not sequence.request.features:
            return None
        # Computed once for the whole prompt, since positions after an image depend on its size (M-RoPE, Qwen2-VL, arXiv
        # 2409.12191), and kept on the CPU until the sequence ends.
        if sequence not in self._positions:
            ids = torch.tensor(sequence.request.prompt, device=self._device)
            mask = torch.zeros(len(ids), dtype=torch.bool)
            for feature in sequence.request.features:
                mask[feature.offset : feature.offset + feature.length] = torch.tensor(
                    list(feature.is_embed or b"\1" * feature.length), dtype=torch.bool
                )
            fields = [self._fields(feature) for feature in sequence.request.features]
            found = self._model.get_mrope_input_positions(ids, mask.to(self._device), fields)
            self._positions[sequence] = found and (found[0].cpu(), found[1])
        return self._positions[sequence]

    def _fields(self, feature: Feature) -> dict[str, Tensor]:
        """An image's arrays as tensors on the model's device."""
        return {
            # Copied: the message's bytes are read-only, which torch's tensors cannot be.
            array.name: torch.from_numpy(np.frombuffer(array.data, array.dtype).reshape(array.shape).copy()).to(
                self._device
            )
            for array in feature.arrays
        }

    def _part(self, feature: Feature, work: Work) -> tuple[list[int], Tensor] | None:
        """Which tokens of `work` an image replaces, and the embeddings in their place; None if it replaces none."""
        # The overlap of the work's tokens with the image's, counted from the image's first token. A chunk may cut an
        # image.
        begin = max(work.start, feature.offset) - feature.offset
        end = min(work.start + work.count, feature.offset + feature.length) - feature.offset
        if begin >= end:
            return None
        # Some of an image's tokens are text (row ends, tile separators): `is_embed` has a 1 for each token that an
        # embedding replaces.
        is_embed = feature.is_embed or b"\1" * feature.length
        where = [feature.offset + place - work.start for place in range(begin, end) if is_embed[place]]
        if not where:
            return None
        # Embeddings are counted without such text tokens: skip those of earlier chunks.
        before, embeddings = sum(is_embed[:begin]), self.encode(feature)
        part = embeddings[before : before + len(where)]
        return where, part if len(part) == len(
            embeddings
        ) else part.clone()  # a view would keep the whole after eviction


def _positions(work: Work, found: Positions | None) -> Tensor:
    """[3, count], the positions of one work's tokens."""
    plain = torch.arange(work.start, work.start + work.count).expand(3, -1)
    if found is None:
        return plain
    prompt, delta = found
    # Tokens behind the prompt are text: their index plus a constant, equal in all three dimensions.
    after = plain[:, max(0, prompt.shape[1] - work.start) :] + delta
    return torch.cat([prompt[:, work.start : work.start + work.count], after], dim=1)
