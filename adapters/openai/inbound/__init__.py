"""Chats, completions and embeddings of OpenAI's clients: request bodies decoded, answers encoded."""
