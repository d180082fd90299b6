"""Attention over the paged KV cache, and its kernels."""
