"""One row per request, for analyses elsewhere, and replays of them on another model."""
