"""``python -m tests.application.ray_nodes``: a Ray cluster of three nodes, each with an address of its own.

Its first line on standard output is the address of the head, then the process ids of each node's raylet and of the
head's server (GCS), as JSON. The cluster ends with its standard input, and nothing of it is left then.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

HEAD, NODES = "127.0.0.2", ("127.0.0.3", "127.0.0.4")
_ENDS: Any = ("raylet", "gcs_server")
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what outlives its raylet becomes a child of this process
    try:
        _run()
    finally:
        # Agents of a raylet, for one, need most of a minute to see that it is gone.
        with suppress(ChildProcessError):
            while True:
                for child in _children():
                    os.kill(child, signal.SIGKILL)
                os.wait()


def _run() -> None:
    """Start the cluster, and return at the end of standard input."""
    least: dict[str, Any] = {
        "object_store_memory": 78_643_200,
        "include_log_monitor": False,
        "_system_config": {"prestart_worker_first_driver": False},
    }
    cluster = Cluster()
    head = cluster.add_node(
        node_ip_address=HEAD, num_cpus=0, no_monitor=True, include_dashboard=False, wait=False, **least
    )
    del least["_system_config"]
    nodes = [cluster.add_node(node_ip_address=host, num_cpus=1, wait=False, **least) for host in NODES]
    cluster.wait_for_nodes(timeout=120)
    found = {
        node.node_ip_address: {
            kind: node.all_processes[kind][0].process.pid for kind in _ENDS if kind in node.all_processes
        }
        for node in (head, *nodes)
    }
    print(json.dumps({"address": cluster.address, "pids": found}), flush=True)
    # A raylet that was killed is a zombie until it is waited for, and its workers take it for alive.
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)


def _children() -> list[int]:
    """The children of this process, those of dead ones included; none can go before it is waited for."""
    found = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return [int(pid) for pid in " ".join(found).split()]


if __name__ == "__main__":
    main()
