"""The routes of no protocol: health, metrics, keys, usage, experiments, feedback, engines, and the OpenAPI document."""
