"""Recurrent state beside the paged cache: convolutions, linear attention and state space layers."""
