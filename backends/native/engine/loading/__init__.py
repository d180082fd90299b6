"""Loading: checkpoints, self-checks at start, tiny copies of models."""
