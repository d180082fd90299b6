"""Usage over HTTP. An admin's key sees all records, another key its own; where no key is known, everybody sees all."""
