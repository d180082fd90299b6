"""Stored objects: their database, and the answers in the background that are some of them."""
