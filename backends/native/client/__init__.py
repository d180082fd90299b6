"""The worker's side of the engine protocol: transports, requests in flight, the engine's process."""
