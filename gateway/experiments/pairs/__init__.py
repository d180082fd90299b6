"""Pairs: the same prompt and seed answered by two arms, and what that says of them."""
