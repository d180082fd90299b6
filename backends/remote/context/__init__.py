"""What is known of the context of a server's models, and conversations that are shortened to it."""
