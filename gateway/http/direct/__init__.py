"""The fast path of plain requests: they are answered in the callbacks of two sockets or of a turn, without a task."""
