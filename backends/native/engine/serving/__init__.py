"""Serving: the engine's thread, its sockets and its process."""
