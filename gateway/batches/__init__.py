"""Batches of requests and the files that they are read from and answered into, in a folder that workers share."""
