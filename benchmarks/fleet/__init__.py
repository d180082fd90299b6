"""A fleet of engines and gateways by discrete events, around the product's own code.

Simulated is what a machine would be needed for: the steps of an engine (`replica`), what clients ask (`traffic`), and
the messages between engines and gateways (`cell`). The rest is the product's: the blocks of an engine's prefix cache
(`BlockPool`), what a gateway knows of an engine's load (`EngineLink`), where a request goes (`affinity.choose` over a
`PrefixIndex`), how many engines there are (`autoscaling.scale`), and to which cell a user belongs (`Rendezvous`).

What is simulated is compared with the product's scheduler (`scheduled`), and with real engine processes that get the
same traffic over sockets (`engines`, `slowed`).
"""
