"""The content of `compaction` items that are made here: a summary in base64, behind a mark."""

from __future__ import annotations

import base64
import binascii

INTRODUCTION = "Summary of the conversation so far:\n\n"
"""Stands before a summary, where a model reads it."""

_MARK = "interlingua-1."


def write_summary(text: str) -> str:
    """The `encrypted_content` that holds a summary."""
    return _MARK + base64.b64encode(text.encode()).decode()


def read_summary(content: str | None) -> str | None:
    """The summary in `encrypted_content`; None: the item is another server's, or damaged."""
    if content is None or not content.startswith(_MARK):
        return None
    try:
        return base64.b64decode(content.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
