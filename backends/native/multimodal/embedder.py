"""The engine's part: the pictures of a step's work as embeddings, each picture encoded once while it is remembered.

The cache holds embeddings and counts them, least recently used ones go first. What a sequence needs and the cache has
lost is encoded again, since a sequence keeps its arrays; so nothing here can be wrong, only slow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from backends.native.engine.sequence import Work
from backends.native.messages import Feature
from backends.native.multimodal.interfaces import SupportsMultiModal


class EncoderCache:
    """Embeddings by content, `capacity` of them or one item, if that has more."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: OrderedDict[bytes, Tensor] = OrderedDict()
        self._held = 0

    def get(self, identifier: bytes) -> Tensor | None:
        """An item's embeddings, [tokens, hidden]."""
        found = self._items.get(identifier)
        if found is not None:
            self._items.move_to_end(identifier)
        return found

    def put(self, identifier: bytes, embeddings: Tensor) -> None:
        """Remember them, and forget others for it."""
        self._items[identifier] = embeddings
        self._held += len(embeddings)
        while self._held > self._capacity and len(self._items) > 1:
            self._held -= len(self._items.popitem(last=False)[1])


class Embedder:
    """Input embeddings of works with pictures.

    Args:
        model: the multimodal model.
        capacity: embeddings remembered.
    """

    def __init__(self, model: SupportsMultiModal, capacity: int) -> None:
        self._model = model
        self._device = model.model.device
        self.cache = EncoderCache(capacity)

    def embed(self, ids: Tensor, works: Seq[Work]) -> Tensor | None:
        """[1, tokens, hidden] for the packed `ids` [1, tokens] of `works`; None if no picture is among them."""
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
        if not rows:
            return None
        return self._model.get_input_embeddings(ids, rows, is_multimodal=mask.to(self._device))

    def encode(self, feature: Feature) -> Tensor:
        """A picture's embeddings, [tokens, hidden]: remembered, or made by the model's encoder."""
        found = self.cache.get(feature.identifier)
        if found is None:
            arrays = {
                array.name: torch.from_numpy(np.frombuffer(array.data, array.dtype).reshape(array.shape).copy())
                for array in feature.arrays
            }
            kwargs = {name: array.to(self._device) for name, array in arrays.items()}
            found = self._model.get_multimodal_embeddings(**kwargs)[0]
            self.cache.put(feature.identifier, found)
        return found

    def _part(self, feature: Feature, work: Work) -> tuple[list[int], Tensor] | None:
        """Where in `work` tokens of a picture are replaced, and by what; None if nowhere."""
        begin = max(work.start, feature.offset) - feature.offset
        end = min(work.start + work.count, feature.offset + feature.length) - feature.offset
        if begin >= end:
            return None
        is_embed = feature.is_embed or b"\1" * feature.length
        where = [feature.offset + place - work.start for place in range(begin, end) if is_embed[place]]
        if not where:
            return None
        before = sum(is_embed[:begin])
        return where, self.encode(feature)[before : before + len(where)]
