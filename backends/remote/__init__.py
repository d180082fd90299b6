"""A backend that is a server elsewhere: any protocol with a client face, over one transport.

Not a protocol: what is said is the adapters' business (`adapters/<protocol>/client.py`). Which servers are known, and
what sets them apart, is the table in `backends.remote.kinds`.
"""

from backends.remote.backend import RemoteBackend

__all__ = ["RemoteBackend"]
