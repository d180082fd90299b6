"""The error of what keeps records."""

from __future__ import annotations


class DatabaseError(Exception):
    """The database cannot be reached, or refuses a statement."""
