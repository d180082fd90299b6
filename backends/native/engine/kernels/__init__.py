"""Compiled CPU kernels and the compiler that builds them, and the kernels of accelerators in Triton."""
