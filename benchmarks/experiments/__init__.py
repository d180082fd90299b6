"""How often the statistics of experiments are wrong, and how many requests they need, by simulation."""
