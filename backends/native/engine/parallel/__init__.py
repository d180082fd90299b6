"""One model over several devices: the processes that run it together, and their steps."""
