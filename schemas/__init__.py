"""Data without behaviour: the IR, the error tree, and each protocol's wire structs.

Every other package may import this one; it imports msgspec only.
"""
