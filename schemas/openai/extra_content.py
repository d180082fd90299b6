"""The field by which Google's OpenAI form gives a call its signature, and takes it back; other protocols borrow it."""

from __future__ import annotations

import msgspec


class GoogleContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is Google's: the signature of the thoughts before a call."""

    thought_signature: str | None = None


class ExtraContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The field's value, by the provider's name."""

    google: GoogleContent | None = None
