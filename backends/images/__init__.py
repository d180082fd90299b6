"""Pictures from clients: fetched where that is allowed, checked, decoded where it can do no harm. No models here."""

from backends.images.loader import ImageFile, ImageLoader, Picture, about
from backends.images.options import ImageOptions

__all__ = ["ImageFile", "ImageLoader", "ImageOptions", "Picture", "about"]
