"""Pooling: hidden states to embedding vectors."""
