"""What differs between two configurations, for the log and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.config.file import Config


def changes(old: Config, new: Config) -> dict[str, list[str]]:
    """The names of what was added, removed and changed, by section; sections without a change are left out."""
    found: dict[str, list[str]] = {}
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    for section in ("endpoints", "backends"):
        before, after = getattr(old, section), getattr(new, section)
        found[f"added_{section}"] = sorted(after.keys() - before.keys())
        found[f"removed_{section}"] = sorted(before.keys() - after.keys())
        found[f"changed_{section}"] = sorted(name for name in after.keys() & before if after[name] != before[name])
    names = (field.name for field in msgspec.structs.fields(old.server))
    found["changed_server"] = [name for name in names if getattr(old.server, name) != getattr(new.server, name)]
    found["changed_usage"] = ["usage"] if old.usage != new.usage else []
    return {name: values for name, values in found.items() if values}


def described(found: Mapping[str, list[str]]) -> str:
    """What `changes` found, as a clause."""
    words = (f"{name.replace('_', ' ')} {', '.join(names)}" for name, names in found.items())
    return "; ".join(words) or "nothing has changed"
