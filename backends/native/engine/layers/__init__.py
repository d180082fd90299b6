"""Layers that replace a model's own where both compute the same."""
