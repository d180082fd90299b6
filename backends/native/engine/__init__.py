"""The engine: schedules, runs and samples. It sees token ids only and never builds text or waits for a socket."""
