"""OpenAI servers as remotes: encode requests for them, decode what they answer."""
