"""OpenAI servers as remotes: requests encoded for them, their answers decoded."""
