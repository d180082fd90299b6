"""JSON schemas in the form of llguidance, for code that a gateway without an engine imports, too."""

from __future__ import annotations

import json
from typing import Any

_JSON_WHITESPACE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def schema_text(schema: dict[str, Any], *, lenient: bool = False) -> str:
    """A JSON schema as text for llguidance; with `lenient`, unsupported keywords are ignored."""
    return json.dumps(schema | {"x-guidance": _JSON_WHITESPACE | {"lenient": lenient}})
