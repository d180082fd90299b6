"""Triton's generate extension: bodies, parameters and answers."""
