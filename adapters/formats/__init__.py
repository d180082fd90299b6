"""Formats of bytes that protocols share: events, lines, forms, protobuf; and frames, which decoders have in common."""
