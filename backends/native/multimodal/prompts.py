"""Prompts with images, in the worker: read the files, decode and process new ones, expand the prompts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

from msgspec.structs import replace

from backends.images import EmbeddingsFile, ImageFile, ImageLoader, ImageOptions, image_errors
from backends.native.machine import return_large_blocks
from backends.native.multimodal.inputs import ImageItem, MultiModalInputs
from backends.native.multimodal.processing import BaseMultiModalProcessor
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.protocol.frames import MAX_FRAME_BYTES
from backends.prompts import images_of
from schemas.errors import InvalidRequest
from schemas.ir import Prompt, TextPrompt

# Strategy:
# - Before encoding, `with_placeholders` puts a placeholder per image into a raw prompt; a chat template does so itself.
# - After encoding, `expand` reads and checks the files, processes the images that are not cached, one at a time, and
#   replaces each placeholder by its image's tokens.
# - Sizes are checked last, against the protocol's frame and against the largest image that the engine has measured.
# - The cache has processed images by the digest of their file: a chat sends its earlier images again with every turn.

_CACHE_BYTES = 64 * 1024 * 1024
_MAX_PROMPT_BYTES = MAX_FRAME_BYTES // 4 * 3  # of a prompt's processed images; the rest of its frame needs less


class ProcessorCache:
    """An LRU cache of processed images by the digest of their file, of at most `max_bytes` bytes."""

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._items: OrderedDict[bytes, ImageItem] = OrderedDict()
        self._size = 0

    def get(self, digest: bytes) -> ImageItem | None:
        """The processed image of a file."""
        found = self._items.get(digest)
        if found is not None:
            # The order of the dict is that of use: the first item is the least recently used one.
            self._items.move_to_end(digest)
        return found

    def put(self, digest: bytes, item: ImageItem) -> None:
        """Add an image, and evict others beyond the limit."""
        if digest in self._items:  # another request processed it at the same time
            return
        self._items[digest] = item
        self._size += item.nbytes
        # An item that is larger than the whole cache evicts everything, itself included.
        while self._size > self._max_bytes:
            self._size -= self._items.popitem(last=False)[1].nbytes


class ImagePrompts:
    """Puts the images of requests into their prompts.

    Args:
        processor: the model's.
        options: limits and sources of images.
        max_tokens: the most placeholder tokens that one image may take.
    """

    def __init__(self, processor: BaseMultiModalProcessor[Any], options: ImageOptions, max_tokens: int) -> None:
        self._processor = processor
        self._max_tokens = max_tokens
        self._loader = ImageLoader(options)
        self._cache = ProcessorCache()

    @classmethod
    def load(cls, folder: str, options: ImageOptions, max_tokens: int) -> ImagePrompts:
        """Load the processor of the checkpoint in `folder`."""
        # The worker needs image-sized blocks for moments only.
        return_large_blocks()
        return cls(load_processor(folder), options, max_tokens)

    def with_placeholders(self, prompt: Prompt) -> Prompt:
        """Put placeholders into a raw prompt: at `image_places`, where its text has them already, or in front."""
        if not isinstance(prompt, TextPrompt) or not prompt.images:
            return prompt
        mark, count = self._processor.info.get_placeholder_str(), len(prompt.images)
        # A protocol that states no places may have them in the text, as the model's own placeholder.
        if not prompt.image_places and mark and prompt.text.count(mark) >= count:
            return prompt
        # Cut the text at the places and join it with the placeholder; without places all cuts are at 0, in front.
        edges = (0, *(prompt.image_places or (0,) * count), len(prompt.text))
        return replace(prompt, text=mark.join(prompt.text[start:stop] for start, stop in pairwise(edges)))

    async def expand(self, prompts: Sequence[Prompt], encoded: Sequence[tuple[int, ...]]) -> list[MultiModalInputs]:
        """Load and process the images of one request's prompts, and expand their placeholders.

        Raises:
            schemas.errors.InvalidRequest: an image is rejected.
        """
        images = [images_of(prompt) for prompt in prompts]
        # One call for all prompts, since the loader's limits apply to the request as a whole. The iterator then deals
        # the files out in the same order, and their numbers name the images in errors.
        files = enumerate(await self._loader.read([part for parts in images for part in parts]))
        expanded = []
        for ids, parts in zip(encoded, images, strict=True):
            items = []
            for _ in parts:
                number, file = next(files)
                with image_errors(number):
                    # One image after the other: the request holds the pixels of one at a time.
                    items.append(await self._item(file))
            expanded.append(self._processor.apply(ids, items) if items else MultiModalInputs(ids))
        self._check_sizes(expanded)
        return expanded

    async def aclose(self) -> None:
        """Stop the loader. Idempotent."""
        await self._loader.aclose()

    def _check_sizes(self, expanded: Sequence[MultiModalInputs]) -> None:
        for inputs in expanded:
            size = sum(len(array.data) for feature in inputs.features for array in feature.arrays)
            if size > _MAX_PROMPT_BYTES:
                raise InvalidRequest(
                    f"The images of a prompt take {size} bytes when processed; the limit is {_MAX_PROMPT_BYTES}."
                )
        for feature in chain.from_iterable(inputs.features for inputs in expanded):
            if feature.length > self._max_tokens:
                message = f"An image of this size takes {feature.length} tokens; the limit is {self._max_tokens}."
                raise InvalidRequest(message)

    async def _item(self, file: ImageFile | EmbeddingsFile) -> ImageItem:
        """The processed image of a file, from the cache or decoded."""
        item = self._cache.get(file.digest)
        if item is not None:
            return item
        if isinstance(file, EmbeddingsFile):
            item = await asyncio.to_thread(self._processor.process_embeddings, file)
            self._cache.put(file.digest, item)
            return item
        async with self._loader.decoded(file) as image:
            try:
                # In a thread: a large image would block the event loop. Another request may process the same image
                # meanwhile; `put` keeps the first result.
                item = await asyncio.to_thread(self._processor.process, image)
            except (ValueError, ArithmeticError) as error:  # for example sides that would be rounded to 0
                size = f"{image.width}x{image.height}"
                raise InvalidRequest(f"The model's image processor does not accept an image of {size}.") from error
        self._cache.put(file.digest, item)
        return item


def load_processor(folder: str) -> BaseMultiModalProcessor[Any]:
    """Load the image processor of the checkpoint in `folder`.

    Raises:
        OSError: the folder lacks the image processor's files.
    """
    from transformers import AutoConfig

    # Registered models may add configuration classes (`AutoConfig.register`).
    MULTIMODAL_REGISTRY.load()
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # The same lookup as the engine's, so that both sides use the same model's classes.
    registered = MULTIMODAL_REGISTRY.lookup(config)
    info = registered.info(folder)
    info.get_image_processor()  # loaded now, not at the first image: seconds of import, and files may be missing
    return registered.processor(info)
