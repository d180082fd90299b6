"""Other servers' configurations as ours: a module for each peer (`litellm`, `vllm`, `triton`, `mindie`).

Each returns a `Draft`: tables for our file, and a report of every field that could not be carried over.
"""
