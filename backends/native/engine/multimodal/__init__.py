"""Images in the engine: self-check, profiling and peak memory."""
