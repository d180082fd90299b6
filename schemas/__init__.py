"""Data without behaviour: the internal request form, the error tree, and each protocol's wire structs.

Imports msgspec and nothing of ours: every other package may import this one, it imports none of them.
"""
