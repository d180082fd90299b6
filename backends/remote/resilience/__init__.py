"""What keeps a backend answering while its servers fail: retries, circuit breaker, health checks, keys in turn."""
