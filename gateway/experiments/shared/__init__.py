"""Experiments of several gateways: their figures in one report, and feedback that reaches the gateway that answered."""
