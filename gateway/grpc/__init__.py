"""The port for clients that speak gRPC: its calls become requests like those over HTTP."""
