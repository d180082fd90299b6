"""Storage that the workers of one gateway share: stored responses in SQLite, and memory-mapped files for counters."""
