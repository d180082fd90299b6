"""What is made of an experiment: its verdict, and ramps, which raise or lower the traffic of an arm by it."""
