"""Runners: one forward pass of the model over a batch of sequences."""
