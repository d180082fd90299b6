"""Scheduling: sequences, KV cache blocks and what each step runs. Imports no torch."""
