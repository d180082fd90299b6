"""Errors that any room of the engine may raise. Imports nothing."""

from __future__ import annotations


class LoadError(Exception):
    """The model, or a LoRA adapter for it, cannot be loaded or run with these options.

    The text is a whole sentence for the operator; it names the file or the option at fault.
    """


class GangLost(Exception):
    """A step failed on one of the processes that run a model together: none of them can be used any more."""
