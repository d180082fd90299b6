"""Formats of weights: each turns what a file holds into the tensors that a model of transformers has."""
