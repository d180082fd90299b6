"""Figures of several gateways in one report.

The counters of a worker are added up with those of all files beside it, and what they count is in their folder's name
(`gateway.experiments.experiment.key`). So the files of another gateway that serves the same arms under the same name
can be laid beside them.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from gateway.experiments.stratum import ABOUT

_COUNTERS = re.compile(r"(?P<name>[a-z]+(?:-[0-9a-f]{16})?)\.(?P<slot>[0-9]+)")
"""A file of counters that a worker of the gateway itself wrote, not one that was laid beside it."""


def add_figures(source: Path, target: Path, label: str) -> int:
    """Lay a gateway's counters beside another's; return the number of files.

    What was laid there under the same label before is replaced, so figures are never added twice. Stops of guardrails
    are not copied: each gateway stops its own arms. Neither are answers: feedback goes to the gateway that answered.

    Args:
        source: the folder of the other gateway's figures, or a copy of it.
        target: the folder of this gateway's figures; it may be running.
        label: names the other gateway; of letters, digits, "_" and "-".

    Raises:
        ValueError: the label is not of that form.
        OSError: a file cannot be read or written.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", label):
        raise ValueError(f"'{label}' is no label: letters, digits, '_' and '-'")
    copied = 0
    for about in sorted(source.glob(f"*/*/{ABOUT}")):
        folder = target / about.parent.relative_to(source)
        # Only experiments that the target knows: else the figures would lie there for nobody.
        if not folder.parent.is_dir():
            continue
        folder.mkdir(exist_ok=True)
        if not (folder / ABOUT).exists():
            _copy(about, folder / ABOUT)
        for file in sorted(about.parent.iterdir()):
            if found := _COUNTERS.fullmatch(file.name):
                _copy(file, folder / f"{found['name']}.{label}-{found['slot']}")
                copied += 1
    return copied


def _copy(source: Path, target: Path) -> None:
    new = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, new)
    new.replace(target)  # a reader finds the old file or the new one, never a part
