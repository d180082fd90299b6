"""OpenAI chat, completions and embeddings: requests from clients, and their answers."""
