"""The protocol between a worker and an engine: messages, frames and the engine's options."""
