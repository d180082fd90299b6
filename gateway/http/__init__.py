"""HTTP: routes, one request from its first byte to its last, and the operational endpoints."""
