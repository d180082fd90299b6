"""From the bytes of a request to what it asks for."""
