"""A backend that answers from scripts instead of a model: for tests, demonstrations and trying out clients.

Deterministic: equal requests give equal events. Needs no torch.
"""

from backends.scripted.backend import ScriptedBackend

__all__ = ["ScriptedBackend"]
