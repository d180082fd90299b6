"""Resizing by color channel, to save memory: overrides the `resize` method of transformers' image processors.

The result is the same byte for byte, because Pillow resizes each channel independently. A single channel is read in
place; a whole image would be copied twice before, once with four bytes a pixel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_OTHER_STEPS = (
    "preprocess",
    "_preprocess_image_like_inputs",
    "_prepare_image_like_inputs",
    "process_image",
    "_preprocess",
)


def resizing_by_channel(processor: Any) -> Any:
    """A subclass of `processor`, an image processor class on Pillow, that resizes by channel.

    The override is placed between `processor` and `PilBackend` in the method resolution order, so that a `resize` of
    `processor` itself still applies.
    """
    from transformers.image_processing_backends import PilBackend

    class ByChannel(PilBackend):  # type: ignore[misc]
        def resize(self, image: Any, *args: Any, **options: Any) -> Any:
            if image.dtype != np.uint8 or image.shape[0] != 3:  # alpha is premultiplied; floats share a scale
                return super().resize(image, *args, **options)
            return np.concatenate(
                [super(ByChannel, self).resize(channel, *args, **options) for channel in image[:, None]]
            )

    return type(processor.__name__, (processor, ByChannel), {})


def begins_with_resize(processor: Any) -> bool:
    """Whether `processor` has transformers' standard pipeline, in which resizing is the first step."""
    from transformers.image_processing_backends import PilBackend

    return all(getattr(type(processor), step) is getattr(PilBackend, step, None) for step in _OTHER_STEPS)
