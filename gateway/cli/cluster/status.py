"""The command `gateway cluster status`: the machines of a Ray cluster, and the engines on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import click
import msgspec

from backends.native.cluster.placement import EngineStatus, ModelStatus, NodeStatus
from backends.native.options import LACKS_RAY


@click.group()
def cluster() -> None:
    """Show the engines that are placed by Ray."""


@cluster.command()
@click.option("--ray", "address", default="auto", show_default=True, help="HOST:PORT of the cluster's head.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
def status(address: str, as_json: bool) -> None:
    """Print the nodes, and each model's engines with their states. This machine must be a node of the cluster."""
    if find_spec("ray") is None:
        raise click.ClickException(LACKS_RAY)
    from backends.native.cluster.ray_cluster import Cluster

    try:
        found = Cluster(address)
        nodes, models = found.nodes(), found.models()
    except (ConnectionError, LookupError, RuntimeError) as error:
        raise click.ClickException(f"there is no cluster at {address}: {error}") from None
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode({"nodes": nodes, "models": models})))
        return
    for line in lines(nodes, models):
        click.echo(line)


def lines(nodes: Sequence[NodeStatus], models: Sequence[ModelStatus]) -> Iterator[str]:
    """The status as it is printed."""
    yield "Nodes"
    for node in nodes:
        state = "alive" if node.alive else "dead"
        yield f"  {node.address:<21} {state:<8} {node.cpus:g} CPUs, {node.gpus:g} GPUs"
    if not models:
        yield "No engines: no gateway asks for any."
    for model in models:
        limits = f"{model.scaling.min} to {model.scaling.max}"
        waiting = f", waiting for an engine: {model.waiting}" if model.waiting else ""
        yield f"{model.name}: {model.target} engines wanted ({limits}), gateways: {model.gateways}{waiting}"
        for engine in model.engines:
            yield f"  {_line(engine)}"
        if model.last_failure:
            yield f"  the latest that ended: {model.last_failure}"


def _line(engine: EngineStatus) -> str:
    report = engine.report
    if report is None:
        return f"{engine.name:<30} waits for a node with its resources"
    state = "leaving" if engine.leaving else "silent" if engine.silent else report.state
    done = f"running {report.running}, waiting {report.waiting}"
    address = f"{report.address.removeprefix('tcp://')}/{report.incarnation}"
    return f"{address:<30} {state:<8} {done if report.state == 'ready' else report.detail}".rstrip()
