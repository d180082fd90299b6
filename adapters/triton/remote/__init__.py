"""Triton servers as remotes: decode what they answer."""
