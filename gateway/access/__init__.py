"""Who may ask for what, and how much: API keys, and limits of requests, tokens and cost."""
