"""Protocols without I/O: bytes to the IR and back, for servers and clients.

Synchronous and pure: no asyncio, httpx, litestar or torch here. One folder per protocol.
"""
