"""Checkpoints as they come: folders, GGUF files, packaged models, hub ids. Imports no torch where workers use it."""
