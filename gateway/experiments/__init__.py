"""Experiments: exposures, outcomes, feedback and statistics of an endpoint's arms; shadows and pairs."""
