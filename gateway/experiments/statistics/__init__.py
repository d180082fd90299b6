"""Statistics that hold at every look: pure arithmetic on arrays, which knows nothing of arms, metrics or counters."""
