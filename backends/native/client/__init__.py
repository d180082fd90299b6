"""The worker's side of the engine protocol: connections, requests in flight, the engine's process."""
