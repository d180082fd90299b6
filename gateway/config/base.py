"""What all sections of the configuration share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated

import msgspec

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Delay = Annotated[float, msgspec.Meta(ge=0)]


class ConfigError(Exception):
    """The configuration is wrong; the text names file, line and key as far as they are known."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all sections: frozen, unknown keys are errors."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion of the closest known name, as the end of a sentence; "" if none is close."""
    names = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), names, 1)
    return f"; did you mean '{names[near[0]]}'?" if near else ""
