"""Backends: each turns a `Generate` into a stream of events. No web types here."""
