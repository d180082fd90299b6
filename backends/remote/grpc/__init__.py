"""Servers that speak gRPC: their clients, from the options that all remote servers have."""
