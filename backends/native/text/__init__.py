"""Text: tokenizer codec, chat templates, tool calls, fill-in-the-middle."""
