"""The commands `gateway check` and `gateway explain`: what a configuration serves, and who answers a unit."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.config import ConfigError, aliases_of, load, missing_endpoints, nearest
from gateway.deployment.state_file import LiveDeployments


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--offline", is_flag=True, help="Leave out variables, files and addresses: this is not where it will run."
)
@click.option("--insecure", is_flag=True, help="Allow a public address without keys.")
def check(file: Path, offline: bool, insecure: bool) -> None:
    """Check a configuration FILE: print all for which `serve` would refuse it, or what it would serve."""
    from gateway.check import read_file

    try:
        config = read_file(file, offline=offline, insecure=insecure)
        # With the changes in the state file, as a server would start with them.
        deployments = LiveDeployments(config).deployments
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if not config.endpoints and not config.is_changeable:
        for name, section in config.backends.items():
            click.echo(f"every model that {name} ({section['kind']}) lists")
    for name, deployed in deployments.items():
        endpoint = deployed.serving
        also = f", also {', '.join(endpoint.aliases)}" if endpoint.aliases else ""
        changed = "" if endpoint == config.endpoints.get(name) else f"  (from {config.server.state_file})"
        click.echo(f"{name}  ({endpoint.task or 'chat'}){also}{changed}")
        for entity in endpoint.served_entities:
            kind = config.backends[entity.backend]["kind"]
            shadow = ", a shadow" if entity.shadow is not None else ""
            paired = f", {entity.paired.share:.0%} paired" if entity.paired is not None else ""
            share, model = entity.traffic_percentage, entity.model or name
            click.echo(f"  {share:3d} %  {entity.name}: {model} on {entity.backend} ({kind}){shadow}{paired}")
    for name in [name for name in config.endpoints if name not in deployments]:
        click.echo(f"{name}  (deleted by {config.server.state_file})")
    # No mistakes: clients may create the endpoints while serving.
    if config.server.state_file is not None:
        aliases = aliases_of({name: deployed.serving for name, deployed in deployments.items()})
        for _, text in missing_endpoints(config.server, {*deployments, *aliases.exact}):
            click.echo(text)


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), required=True, help="The TOML file.")
@click.option("--endpoint", required=True, help="The endpoint's name.")
@click.option("--unit", required=True, help="The value of a unit, for instance a user's name.")
def explain(file: Path, endpoint: str, unit: str) -> None:
    """Explain which served entity answers a unit."""
    from gateway.routing.policy import policy_for

    try:
        deployments = LiveDeployments(load(file)).deployments
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if (deployed := deployments.get(endpoint)) is None:
        raise click.ClickException(f"{file}: there is no endpoint '{endpoint}'{nearest(endpoint, deployments)}")
    weights = {entity.name: float(entity.traffic_percentage) for entity in deployed.serving.served_entities}
    for line in policy_for(endpoint, deployed.serving).explain(unit, weights):
        click.echo(line)
