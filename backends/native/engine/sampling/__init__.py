"""Sampling: logits processors, warpers, grammar masks and the choice of a token."""
