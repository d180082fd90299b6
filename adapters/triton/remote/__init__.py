"""Triton servers as remotes: the decoding of their answers."""
