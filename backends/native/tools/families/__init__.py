"""The families of chat models, one module each. `table` lists them in the order in which they are looked for."""
