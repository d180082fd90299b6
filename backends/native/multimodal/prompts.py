"""Requests with pictures, on the worker's side: read the files, decode and process what is new, expand prompts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

from msgspec.structs import replace

from backends.images import DecodedImage, ImageFile, ImageLoader, ImageOptions, image_errors
from backends.native.machine import return_large_blocks
from backends.native.multimodal.inputs import ImageItem, MultiModalInputs
from backends.native.multimodal.processing import BaseMultiModalProcessor
from backends.native.multimodal.registry import MULTIMODAL_REGISTRY
from backends.native.protocol.frames import LONGEST
from schemas.errors import InvalidRequest
from schemas.ir import ChatPrompt, ImagePart, Prompt, TextPrompt

_CACHE_BYTES = 64 * 1024 * 1024
_MOST_BYTES = LONGEST // 4 * 3  # of a prompt's pictures; what else is in a frame to the engine needs less


class ProcessorCache:
    """Processed pictures by the digest of their file, least recently used ones forgotten beyond `most` bytes."""

    def __init__(self, most: int = _CACHE_BYTES) -> None:
        self._most = most
        self._items: OrderedDict[bytes, ImageItem] = OrderedDict()
        self._held = 0

    def get(self, digest: bytes) -> ImageItem | None:
        """What was made of that file."""
        found = self._items.get(digest)
        if found is not None:
            self._items.move_to_end(digest)
        return found

    def put(self, digest: bytes, item: ImageItem) -> None:
        """Remember it."""
        if digest in self._items:  # two requests made it at the same time
            return
        self._items[digest] = item
        self._held += item.nbytes
        while self._held > self._most:
            self._held -= self._items.popitem(last=False)[1].nbytes


class ImagePrompts:
    """Puts the pictures of requests into their prompts.

    Args:
        processor: the model's.
        options: what pictures are taken.
        most_tokens: that one of them may take.
    """

    def __init__(self, processor: BaseMultiModalProcessor[Any], options: ImageOptions, most_tokens: int) -> None:
        self._processor = processor
        self._most_tokens = most_tokens
        self._loader = ImageLoader(options)
        self._cache = ProcessorCache()

    @classmethod
    def load(cls, folder: str, options: ImageOptions, most_tokens: int) -> ImagePrompts:
        """For the checkpoint in `folder`, which takes pictures."""
        return_large_blocks()
        return cls(load_processor(folder), options, most_tokens)

    def marked(self, prompt: Prompt) -> Prompt:
        """A raw prompt with placeholders where its pictures stand: where it says, or has them itself, or first."""
        if not isinstance(prompt, TextPrompt) or not prompt.images:
            return prompt
        mark, count = self._processor.info.get_placeholder_str(), len(prompt.images)
        if not prompt.image_places and mark and prompt.text.count(mark) >= count:
            return prompt
        edges = (0, *(prompt.image_places or (0,) * count), len(prompt.text))
        return replace(prompt, text=mark.join(prompt.text[start:stop] for start, stop in pairwise(edges)))

    async def expand(self, prompts: Sequence[Prompt], encoded: Sequence[tuple[int, ...]]) -> list[MultiModalInputs]:
        """The prompts of one request, tokenised, with their pictures.

        Raises:
            schemas.errors.InvalidRequest: a picture is refused.
        """
        wanted = [images_of(prompt) for prompt in prompts]
        files = enumerate(await self._loader.read([part for parts in wanted for part in parts]))
        expanded = []
        for ids, parts in zip(encoded, wanted, strict=True):
            items = [await self._numbered(*next(files)) for _ in parts]
            expanded.append(self._processor.apply(ids, items) if items else MultiModalInputs(ids))
        self._check_sizes(expanded)
        return expanded

    async def aclose(self) -> None:
        """Stop. Idempotent."""
        await self._loader.aclose()

    def _check_sizes(self, expanded: Sequence[MultiModalInputs]) -> None:
        for inputs in expanded:
            size = sum(len(array.data) for feature in inputs.features for array in feature.arrays)
            if size > _MOST_BYTES:
                raise InvalidRequest(f"The images of a prompt take {size} bytes when prepared, {_MOST_BYTES} at most.")
        for feature in chain.from_iterable(inputs.features for inputs in expanded):
            if feature.length > self._most_tokens:
                most = f"at most {self._most_tokens} are made ready for"
                raise InvalidRequest(f"An image of this size takes {feature.length} tokens; {most}.")

    async def _numbered(self, number: int, file: ImageFile) -> ImageItem:
        with image_errors(number):
            return await self._item(file)

    async def _item(self, file: ImageFile) -> ImageItem:
        item = self._cache.get(file.digest)
        if item is None:
            async with self._loader.decoded(file) as picture:
                item = await self._processed(picture)
            self._cache.put(file.digest, item)
        return item

    async def _processed(self, picture: DecodedImage) -> ImageItem:
        try:
            return await asyncio.to_thread(self._processor.process, picture)
        except (ValueError, ArithmeticError) as error:  # of sides that would be rounded to nothing, say
            size = f"{picture.width}x{picture.height}"
            raise InvalidRequest(f"The image is {size}, which the model's image processor does not take.") from error


def load_processor(folder: str) -> BaseMultiModalProcessor[Any]:
    """The processor for the checkpoint in `folder`, which takes pictures.

    Raises:
        OSError: the folder lacks what an image processor needs.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    known = MULTIMODAL_REGISTRY.about(config)
    info = known.info(folder)
    info.image_processor  # noqa: B018 - seconds of import and files that may lack: now, not at the first picture
    return known.processor(info)


def images_of(prompt: Prompt) -> tuple[ImagePart, ...]:
    """Its pictures, in order."""
    if isinstance(prompt, TextPrompt):
        return prompt.images
    if not isinstance(prompt, ChatPrompt):
        return ()
    contents = (message.content for message in prompt.messages if isinstance(message.content, tuple))
    return tuple(part for content in contents for part in content if isinstance(part, ImagePart))
