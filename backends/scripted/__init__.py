"""A backend that answers by a script: for tests, demonstrations and trying a client without a model.

Deterministic: the same request gives the same events. No torch.
"""

from backends.scripted.backend import ScriptedBackend

__all__ = ["ScriptedBackend"]
