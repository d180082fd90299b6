"""Usage: one record per request, the database that keeps the records, and what is asked of it."""
