"""What a token costs over gRPC, and over SSE: CPU time of the gateway's processes per token of a stream.

    python -m benchmarks.rpc [--streams 64] [--rounds 3]

Both protocols are Triton's, ask for the same texts, and take turns; printed are medians, and their ratio, of which the
goal is at most 1.5. `one at a time` and `ten at a time`: the scripted backend, which makes a token, or ten, whenever it
is asked. `from a server`: another gateway sends tokens one at a time, as fast as it can.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from grpc import aio

from adapters.triton.grpc.messages import MESSAGES, SERVICE
from benchmarks.gateway import CONFIG, KEY, cpu_seconds, drive, free_port, server

MOST_TOKENS = 2000
CONNECTIONS = 16
REMOTE = """
[server]
keys_env = "BENCH_KEY"
limits = {{ max_requests_per_connection = 1000000 }}
[backends.far]
kind = "openai"
url = "http://127.0.0.1:{port}/v1"
api_key_env = "BENCH_KEY"
[endpoints.single]
served_entities = [{{ name = "single", backend = "far" }}]
"""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with started(CONFIG) as (pid, port, rpc_port):
        for model, what in (("single", "one at a time"), ("bursts", "ten at a time")):
            compare(what, pid, port, rpc_port, model, given)
        with started(REMOTE.format(port=port)) as (gateway, own_port, own_rpc_port):
            compare("from a server", gateway, own_port, own_rpc_port, "single", given)


@contextmanager
def started(config: str) -> Iterator[tuple[int, int, int]]:
    """A gateway: its process id, its port, and that for gRPC."""
    rpc_port = free_port()
    config = config.replace("[backends.", f"[server.grpc]\nport = {rpc_port}\n[backends.", 1)
    with server(config) as (pid, port):
        yield pid, port, rpc_port


def compare(what: str, pid: int, port: int, rpc_port: int, model: str, given: argparse.Namespace) -> None:
    """Print the costs of both protocols."""
    costs: dict[str, list[float]] = {"SSE": [], "gRPC": []}
    sizes: list[float] = []
    for number in range(given.rounds + 1):
        sse, tokens = over_sse(pid, port, model, given.streams)
        rpc, responses = over_rpc(pid, rpc_port, model, given.streams)
        if number:  # the first round warms up
            costs["SSE"].append(sse / tokens)
            costs["gRPC"].append(rpc / tokens)
            sizes.append(tokens / responses)
    sse, rpc = (statistics.median(found) * 1e6 for found in costs.values())
    ratio = f"{statistics.median(sizes):.1f} tokens a response: {rpc / sse:.2f}"
    print(f"{what:14} SSE {sse:5.1f} µs CPU per token, gRPC {rpc:5.1f} µs, {ratio}")


def over_sse(pid: int, port: int, model: str, streams: int) -> tuple[float, int]:
    """CPU seconds of streams of `generate_stream`, and their frames, which have a token each."""
    before = cpu_seconds(pid)
    frames = asyncio.run(drive(port, model, streams, CONNECTIONS, "triton", stream=True))
    return cpu_seconds(pid) - before, frames


def over_rpc(pid: int, port: int, model: str, streams: int) -> tuple[float, int]:
    """CPU seconds of streams of `ModelStreamInfer`, and their responses."""
    before = cpu_seconds(pid)
    responses = asyncio.run(_drive(port, model, streams))
    return cpu_seconds(pid) - before, responses


async def _drive(port: int, model: str, streams: int) -> int:
    request = MESSAGES["ModelInferRequest"](model_name=model)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"What?")
    request.parameters["max_tokens"].int64_param = MOST_TOKENS
    body = request.SerializeToString()
    shares = [streams // CONNECTIONS] * CONNECTIONS
    return sum(await asyncio.gather(*(_client(port, body, share) for share in shares)))


async def _client(port: int, body: bytes, count: int) -> int:
    responses = 0
    # Without options of its own a channel would share its connection with the others.
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        method = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        for _ in range(count):
            call = method(iter([body]), metadata=(("authorization", f"Bearer {KEY}"),))
            async for _ in call:
                responses += 1
    return responses


if __name__ == "__main__":
    main()
