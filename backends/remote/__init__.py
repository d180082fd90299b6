"""The backend that forwards requests to a server elsewhere, in any protocol that has a client codec.

Protocols are in `adapters/<protocol>/client.py`, HTTP is in `backends.transport`. Which kinds of servers there are, and
what they can do, is the table in `backends.remote.kinds`.
"""

from backends.remote.backend import RemoteBackend

__all__ = ["RemoteBackend"]
