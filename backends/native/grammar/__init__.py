"""Grammars for structured output, and the limits on schemas and regular expressions."""
