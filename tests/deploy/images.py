"""The steps of a Dockerfile without Docker: RUN and the image's command run in a chroot.

    python -m tests.deploy.images deploy/docker/Dockerfile.cpu FOLDER BASE [NAME=VALUE ...]

builds an image as a folder by hand, on a copy of the folder BASE (what debootstrap makes, for example). Tests use the
machine's own `/usr`, list of packages and Python as the base, which takes no time: steps see them through overlayfs,
and what they change there is the image's. Needs root.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_LINKS = ("bin", "sbin", "lib", "lib64")
_FOLDERS = ("dev", "proc", "opt", "root", "tmp", "var/tmp", "run")
_SHARED = ("/usr", "/var/lib/dpkg", "/var/cache/debconf")


class Instruction(NamedTuple):
    """One instruction of a Dockerfile."""

    name: str
    rest: str


def instructions(file: Path) -> list[Instruction]:
    """All instructions, each on one line."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [Instruction(*line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def is_ignored(path: str) -> bool:
    """Whether `.dockerignore` leaves a file or folder out: the last pattern that matches decides."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern = line.lstrip("!").rstrip("/").removeprefix("**/")
            if any(fnmatch.fnmatch(part, pattern) for part in (path, *map(str, Path(path).parents))):
                ignored = not line.startswith("!")
    return ignored


@dataclass(slots=True, eq=False)
class Image:
    """A stage of a Dockerfile as a folder, and what its instructions have set so far.

    Attributes:
        folder: the root of its files.
        shared: folders of this machine that it sees, each with the folder of what its steps have changed there.
        environment: the variables of its steps and of its command.
    """

    folder: Path
    shared: Mapping[str, Path]
    environment: dict[str, str]
    shell: list[str] = field(default_factory=lambda: ["/bin/sh", "-c"])
    workdir: str = "/"
    user: str = "0:0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def inside(self, words: Sequence[str], *, own_network: bool = False) -> list[str]:
        """A command of this machine that runs a command in the image, as its user and with its variables only.

        With a network of its own, ports that the image listens on are free.
        """
        mounts = [f"mount --rbind {name} {shlex.quote(str(self.folder))}{name}" for name in ("/dev", "/proc")]
        for name, changed in self.shared.items():
            layers = f"lowerdir={name},upperdir={changed}/files,workdir={changed}/work"
            mounts += [shlex.join(["mount", "-t", "overlay", "overlay", "-o", layers, f"{self.folder}{name}"])]
        mounts += ["ip link set lo up"] if own_network else []
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        step = ["cd", self.workdir, "&&", "exec", "env", "-i", *variables, *words]
        line = " ".join(word if word in ("&&", "cd", "exec") else shlex.quote(word) for word in step)
        chroot = ["chroot", f"--userspec={self.user}", str(self.folder), "/bin/sh", "-c", line]
        script = " && ".join([*mounts, f"exec {shlex.join(chroot)}"])
        network = ["--net"] if own_network else []
        return [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            *network,
            "--kill-child",
            "--fork",
            "sh",
            "-c",
            script,
        ]

    def do(self, each: Instruction, stages: Mapping[str, Image]) -> None:
        """Carry out one instruction.

        Raises:
            subprocess.CalledProcessError: a RUN failed; its output is in the error.
        """
        match each.name:
            case "SHELL":
                self.shell = json.loads(each.rest)
            case "ENV":
                self.environment |= dict(self._pair(word) for word in shlex.split(each.rest))
            case "ARG":
                name, _, default = each.rest.partition("=")
                self.environment.setdefault(name, default)
            case "WORKDIR":
                self.workdir = each.rest
                (self.folder / each.rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = each.rest
            case "COPY":
                self._copy(each.rest.split(), stages)
            case "RUN":
                subprocess.run(self.inside([*self.shell, each.rest]), check=True, capture_output=True, text=True)
            case "ENTRYPOINT":
                self.entrypoint = json.loads(each.rest)
            case "CMD":
                self.command = json.loads(each.rest)
            case "HEALTHCHECK":
                self.health = json.loads(each.rest[each.rest.index("[") :])
            case "EXPOSE":
                pass
            case name:
                raise ValueError(f"{name}: an instruction that nobody has taught this module")

    def _pair(self, word: str) -> tuple[str, str]:
        name, _, value = word.partition("=")
        return name, re.sub(r"\$(\w+)", lambda found: self.environment.get(found[1], ""), value)

    def _copy(self, words: list[str], stages: Mapping[str, Image]) -> None:
        source = ROOT
        if words[0].startswith("--from="):
            source = stages[words.pop(0).removeprefix("--from=")].folder
        *names, target = words
        to = self.folder / os.path.join(self.workdir, target).lstrip("/")
        for name in names:
            found = source / name.lstrip("/")
            if found.is_dir():  # what is in it, not the folder itself
                ignore = shutil.ignore_patterns("__pycache__") if source == ROOT else None
                shutil.copytree(found, to, symlinks=True, ignore=ignore, dirs_exist_ok=True)
            else:
                into = to / found.name if target.endswith("/") else to
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, into)


def build(file: Path, folder: Path, arguments: Mapping[str, str], base: Path | None = None) -> Image:
    """Run all instructions of a Dockerfile.

    Args:
        file: the Dockerfile.
        folder: where its stages are made.
        arguments: of the build. Unlike Docker's, all of them are variables of every step.
        base: a folder that stands in for the image behind FROM; None takes this machine's `/usr`, `/etc` and Python.

    Returns:
        its last stage.
    """
    stages: dict[str, Image] = {}
    image: Image | None = None
    for each in instructions(file):
        if each.name == "FROM":
            name = each.rest.partition(" AS ")[2] or "last"
            image = stages[name] = _start(folder / name, base, arguments)
        else:
            assert image is not None
            image.do(each, stages)
    assert image is not None
    return image


def _start(folder: Path, base: Path | None, arguments: Mapping[str, str]) -> Image:
    python, shared = "/usr/local", dict[str, Path]()
    if base is not None:
        subprocess.run(["cp", "--archive", str(base), str(folder)], check=True)
    else:
        python = sys.base_prefix
        for name in (*_SHARED, *(() if python.startswith("/usr") else (python,))):
            shared[name] = folder.with_name(f"{folder.name}-changed") / name.replace("/", "-")
            for made in (folder / name.lstrip("/"), shared[name] / "files", shared[name] / "work"):
                made.mkdir(parents=True, exist_ok=True)
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "tmp").chmod(0o1777)
        for name in _LINKS:
            if os.path.islink(f"/{name}"):
                (folder / name).symlink_to(os.readlink(f"/{name}"))
        shutil.copytree("/etc", folder / "etc", symlinks=True)
    path = dict.fromkeys(
        (f"{python}/bin", "/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin")
    )
    return Image(folder, shared, {"PATH": ":".join(path), "HOME": "/root", **_of_pip(), **arguments})


def _of_pip() -> dict[str, str]:
    """Where this machine's pip finds packages, which the image's has to know as well."""
    return {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}


if __name__ == "__main__":
    file, folder, base, *words = sys.argv[1:]
    try:
        made = build(Path(file), Path(folder), dict(word.split("=", 1) for word in words), Path(base))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stdout[-3000:]}\n{error.stderr[-3000:]}")
    print(shlex.join(made.inside([*made.entrypoint, *made.command])))
