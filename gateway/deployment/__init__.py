"""Deployment: the endpoints as configured and as changed while serving."""
