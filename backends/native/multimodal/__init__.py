"""Images for native models, in the terms of vLLM's guide to multimodal support.

The worker's side (`processing`, `prompts`) turns images into arrays and placeholder tokens and imports no torch. The
engine's side (`interfaces`, `engine.runner.embedder`) turns arrays into embeddings. A model is one file in `models`.
"""
