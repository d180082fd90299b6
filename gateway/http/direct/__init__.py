"""Plain requests that are answered within the callbacks of two sockets, without a task."""
