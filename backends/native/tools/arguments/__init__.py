"""How models write the arguments of a call. Each way has a reader, which makes JSON of them, and a grammar."""
