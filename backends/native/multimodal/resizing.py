"""Large pictures resized a color at a time: image processors of transformers with the one method overridden that they
resize by.

The bytes are the same, since Pillow resizes each color for itself. Of one color it looks at the bytes that it is given,
where a whole picture would be copied twice before it, once with four bytes a pixel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_BEFORE_AND_AFTER = (
    "preprocess",
    "_preprocess_image_like_inputs",
    "_prepare_image_like_inputs",
    "process_image",
    "_preprocess",
)


def by_color(processor: Any) -> Any:
    """A class like `processor`, one of transformers' over Pillow, that resizes a color at a time.

    The method stands between those of `processor` and that of `PilBackend`: what `processor` decides itself holds.
    """
    from transformers.image_processing_backends import PilBackend

    class ByColor(PilBackend):  # type: ignore[misc]
        def resize(self, image: Any, *args: Any, **options: Any) -> Any:
            if image.dtype != np.uint8 or image.shape[0] != 3:  # alpha has a say in colors, and all floats in a float
                return super().resize(image, *args, **options)
            return np.concatenate([super(ByColor, self).resize(color, *args, **options) for color in image[:, None]])

    return type(processor.__name__, (processor, ByColor), {})


def begins_with_resize(processor: Any) -> bool:
    """Whether `processor` is the plain pipeline of transformers, but for its figures and what it calls in the end."""
    from transformers.image_processing_backends import PilBackend

    return all(getattr(type(processor), step) is getattr(PilBackend, step, None) for step in _BEFORE_AND_AFTER)
