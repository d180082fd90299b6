"""Protocols, sans I/O: bytes to the internal form and back, for both ends of a connection.

Synchronous and pure: no asyncio, httpx, litestar or torch here. One folder a protocol.
"""
