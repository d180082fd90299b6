"""Compiled CPU kernels and the compiler that builds them."""
