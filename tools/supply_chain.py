"""What the server is made of: the packages it runs with, their licences, and a lock file with hashes of their files.

    python -m tools.supply_chain licences > docs/licences.md
    python -m tools.supply_chain lock > requirements.lock
    python -m tools.supply_chain lock-gateway > requirements-gateway.lock

They describe the environment that the command runs in, and in it what the distribution needs to run, not its tools.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

DISTRIBUTION = "interlingua"
GATEWAY = frozenset({"experiments", "http2", "socks"})
"""The extras of a gateway over remote servers, without an engine."""
UNLOCKED = frozenset({"torch"})
"""Comes in builds by platform and accelerator, under one version: the operator chooses one."""

COMPATIBLE = frozenset(
    {"apache-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "0bsd", "isc", "mit", "mit-0", "mit-cmu", "hpnd", "mpl-2.0"}
    | {"psf-2.0", "python-2.0", "unlicense", "zlib", "cc0-1.0", "llvm-exception", "cnri-python", "bsl-1.0"}
)
"""Licences, by their SPDX identifiers, under which Apache-2.0 code may be used together with a package."""

# What packages write instead of an SPDX expression.
_INFORMAL = {
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD",
    "bsd license": "BSD",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit": "MIT",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
# Their metadata state no licence, or not in each build; this is what is in their licence files.
_UNSTATED = {"rich-click": "MIT", "socksio": "MIT", "torch": "BSD-3-Clause"}


def closure(root: str = DISTRIBUTION, extras: Collection[str] = GATEWAY | {"engine"}) -> list[Distribution]:
    """The distributions that `root` needs with `extras`, by name, itself and what torch brings excluded.

    Raises:
        importlib.metadata.PackageNotFoundError: `root` is not installed.
    """
    found: dict[str, Distribution] = {}
    waiting = [(root, frozenset(extras))]
    while waiting:
        name, extras = waiting.pop()
        key = canonical(name)
        if key in found and not extras:
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError:
            if key == canonical(root):
                raise
            continue  # needed elsewhere only: its marker may name an extra of a package
        # Builds of torch need different packages.
        for line in (found[key].requires or ()) if key not in UNLOCKED else ():
            needed = Requirement(line)
            # An extra that was asked for, or none.
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((needed.name, frozenset(needed.extras)))
    found.pop(canonical(root))
    return [found[key] for key in sorted(found)]


def canonical(name: str) -> str:
    """A distribution's name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(package: Distribution) -> str:
    """A package's licence as an SPDX expression, as far as its metadata tell."""
    metadata = package.metadata
    stated = metadata["License-Expression"] or metadata["License"] or ""
    if stated in ("", "UNKNOWN") or len(stated) > 60 or "\n" in stated:  # some put the whole text there
        classifiers = [line for line in metadata.get_all("Classifier") or () if line.startswith("License :: ")]
        unstated = _UNSTATED.get(canonical(metadata["Name"]), "unknown")
        stated = classifiers[0].rpartition(" :: ")[2] if classifiers else unstated
    return _INFORMAL.get(stated.lower(), stated)


def incompatible(expression: str) -> list[str]:
    """The licences of an SPDX expression that are not known to be compatible; one of several to choose suffices."""
    missing: list[list[str]] = []
    for choice in re.split(r"\s+or\s+", expression.lower().replace("(", " ").replace(")", " ")):
        terms = re.split(r"\s+(?:and|with)\s+", choice.strip())
        missing.append([term for term in map(str.strip, terms) if term not in COMPATIBLE])
    return min(missing, key=len)


def licences() -> Iterator[str]:
    """The page of licences, line by line."""
    yield "# Licences"
    yield ""
    yield "The packages that the server runs with, and their licences as their metadata state them; what torch brings"
    yield "with it is not listed. Interlingua itself is under the Apache License 2.0."
    yield ""
    yield "Written by `python -m tools.supply_chain licences`."
    yield ""
    yield "| package | licence |"
    yield "|---|---|"
    for package in closure():
        yield f"| {canonical(package.metadata['Name'])} | {licence(package)} |"


def lock(extras: Collection[str] = GATEWAY | {"engine"}) -> Iterator[str]:
    """A lock file, line by line: for this interpreter and platform, with the hashes of the files that pip chooses.

    Args:
        extras: of the distribution.

    Raises:
        subprocess.CalledProcessError: pip cannot find a package, or reaches no registry.
    """
    pins = [f"{canonical(each.metadata['Name'])}=={each.version}" for each in closure(extras=extras)]
    pins = [pin for pin in pins if pin.partition("==")[0] not in UNLOCKED]
    with tempfile.TemporaryDirectory() as folder:
        (wanted := Path(folder, "requirements.txt")).write_text("\n".join(pins) + "\n")
        report = Path(folder, "report.json")
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *options, "--requirement", str(wanted)]
        subprocess.run(command, check=True)  # noqa: S603 - our own arguments
        installed = json.loads(report.read_text())["install"]
    python = f"CPython {sys.version_info.major}.{sys.version_info.minor}"
    if "engine" in extras:
        yield f"# For {python} on {sys.platform}, by `make lock`. torch is not in it: install a build of it first:"
    else:
        yield f"# For {python} on {sys.platform}, by `make lock`: a gateway without an engine."
    yield "# pip install --require-hashes --no-deps --requirement THIS_FILE && pip install --no-deps ."
    for each in sorted(installed, key=lambda each: canonical(each["metadata"]["name"])):
        hashes = each["download_info"]["archive_info"]["hashes"]
        name, version = canonical(each["metadata"]["name"]), each["metadata"]["version"]
        yield f"{name}=={version} --hash=sha256:{hashes['sha256']}"


_COMMANDS: dict[str, Callable[[], Iterator[str]]] = {
    "licences": licences,
    "lock": lock,
    "lock-gateway": partial(lock, GATEWAY),
}

if __name__ == "__main__":
    sys.stdout.write("\n".join(_COMMANDS[sys.argv[1]]()) + "\n")
