"""Observability: logs and Prometheus metrics."""
