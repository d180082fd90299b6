"""What protocols share: formats of bytes (events, lines, forms, protobuf) and their frames, and forms of schemas."""
