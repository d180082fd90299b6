"""Models we run ourselves: text in the gateway worker, token ids in an engine process.

torch and transformers are imported here and nowhere else in the project. Imports no adapter.
"""
