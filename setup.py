"""The build of the package: with `INTERLINGUA_COMPILE=1` mypyc compiles the modules of the fast path (`make wheel`).

The source is the same either way, and without compiled modules Python runs it.
"""

from __future__ import annotations

import os

from setuptools import setup

# Modules that run for each request or chunk. mypyc compiles no async generators, no structs of msgspec with defaults,
# no subclasses of other packages' classes, and no base of classes that stay Python.
COMPILED = [
    "adapters/openai/remote/decode_answer.py",
    "adapters/openai/remote/encode_request.py",
    "adapters/openai/remote/plain_answer.py",
    "adapters/openai/remote/text_runs.py",
    "backends/remote/direct_stream.py",
    "backends/remote/event_stream.py",
    "backends/remote/resilience/breaker.py",
    "backends/remote/resilience/retry.py",
    "backends/transport/begun.py",
    "backends/transport/connection.py",
    "backends/transport/deadline.py",
    "backends/transport/pool.py",
    "backends/transport/waiting_line.py",
    "gateway/deployment/endpoint_counts.py",
    "gateway/http/direct/lane.py",
    "gateway/http/observation/observer.py",
    "gateway/observability/counters.py",
    "gateway/observability/metrics.py",
    "gateway/observability/request_log.py",
    "gateway/routing/router.py",
    "gateway/server/client_transport.py",
    "gateway/server/direct_way.py",
    "gateway/server/request_head.py",
]

if os.environ.get("INTERLINGUA_COMPILE"):
    from mypyc.build import mypycify

    setup(ext_modules=mypycify(COMPILED, opt_level="2"))
else:
    setup()
