"""Processes: the supervisor, its children and the HTTP workers."""
