"""Why a checkpoint is refused."""

from backends.base import NotPrepared


class CheckpointError(NotPrepared):
    """A checkpoint cannot be had or read; the text names it and says what to do."""
