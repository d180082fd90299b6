"""Routing: which served entity answers a request, and in which order the others are asked."""
