"""The HTTP/1.1 server: a client's connection, the heads of its requests and the answers that are written to it."""
