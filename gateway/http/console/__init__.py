"""What the console at `/ui` reads: who is logged in, what is served, and a stream of what happens."""
