"""Images of requests: fetched from allowed sources, checked against limits, decoded in a sandboxed process.

What a model makes of the pixels is in `backends.native.multimodal`.
"""

from backends.images.loader import DecodedImage, EmbeddingsFile, ImageFile, ImageLoader, image_errors
from backends.images.options import ImageOptions

__all__ = ["DecodedImage", "EmbeddingsFile", "ImageFile", "ImageLoader", "ImageOptions", "image_errors"]
