# The same classes, in C.
from backends.transport.outbox.plain import Outbox as Outbox
from backends.transport.outbox.plain import Outboxes as Outboxes
from backends.transport.outbox.plain import Relay as Relay
