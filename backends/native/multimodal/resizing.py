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

    # The class has to be made here: transformers is imported only when a model with images is loaded.
    class ByChannel(PilBackend):  # type: ignore[misc]
        def resize(self, image: Any, *args: Any, **options: Any) -> Any:
            if image.dtype != np.uint8 or image.shape[0] != 3:  # alpha is premultiplied; floats share a scale
                return super().resize(image, *args, **options)
            # `image[:, None]` is [3, 1, height, width]: three images of one channel each. `super` needs its arguments,
            # since a comprehension is a function of its own before Python 3.12.
            return np.concatenate(
                [super(ByChannel, self).resize(channel, *args, **options) for channel in image[:, None]]
            )

    # The name stays: `to_dict` reports it as `image_processor_type`.
    return type(processor.__name__, (processor, ByChannel), {})


def begins_with_resize(processor: Any) -> bool:
    """Whether `processor` has transformers' standard pipeline, in which resizing is the first step."""
    from transformers.image_processing_backends import PilBackend

    # A class that overrides one of these steps may look at the original pixels before it resizes.
    return all(getattr(type(processor), step) is getattr(PilBackend, step, None) for step in _OTHER_STEPS)
