"""What the encoders of requests for remotes share, whatever the protocol."""

from __future__ import annotations

from schemas.errors import UnsupportedFeature
from schemas.ir import ImagePart

_JPEG_BASE64 = "/9j/"
"""The first characters of every JPEG in base64."""


def inexpressible(feature: str) -> UnsupportedFeature:
    """The refusal of a request for a `feature` that the remote's protocol has no field for."""
    return UnsupportedFeature(f"The backend's protocol cannot express {feature.replace('_', ' ')}.", feature=feature)


def image_url(image: ImagePart) -> str:
    """The `http:`, `https:` or `data:` URL of an image. Bare base64 is taken for a JPEG or a PNG.

    Raises:
        schemas.errors.UnsupportedFeature: the image is a path of this machine, which the remote cannot read, or has no
            pixels.
    """
    if image.kind == "embeddings":
        raise inexpressible("image_embeds")
    if image.kind == "path":
        raise inexpressible("images")
    if image.kind == "data" and not image.ref.startswith("data:"):
        # A `data:` URL needs a media type, and bare base64 comes without one. A JPEG is known by its first characters;
        # everything else is labelled as a PNG.
        return f"data:image/{'jpeg' if image.ref.startswith(_JPEG_BASE64) else 'png'};base64,{image.ref}"
    return image.ref
