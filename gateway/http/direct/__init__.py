"""The fast path of plain requests: they are answered within the callbacks of two sockets, without a task."""
