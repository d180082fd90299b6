"""Training samples: chats and raw completions, by kind, and the mix of them."""
