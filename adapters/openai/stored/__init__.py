"""Conversations and stored chat completions."""
