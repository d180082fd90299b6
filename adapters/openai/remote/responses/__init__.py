"""Servers that have the Responses API: requests written, answers read."""
