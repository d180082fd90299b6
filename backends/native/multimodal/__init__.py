"""Pictures for models of our own, in the nouns of vLLM's guide to multimodal support.

The worker's side (`processing`, `prompts`) turns pictures into arrays and placeholder tokens and imports no torch; the
engine's side (`interfaces`, `embedder`) turns arrays into embeddings. A model is one file in `models`.
"""
