"""What a first `make serve` has pip install, with programs that only note their words in place of an environment's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.missing_tools import missing

ROOT = Path(__file__).parents[2]
NOTE = """\
#!/bin/sh
echo "$(basename "$0") $*" >> {calls}
{more}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout whose environment is there, without what is to be installed."""
    in_c = ("backends/transport/outbox/compiled.c", "gateway/access/usual_rows/compiled.c")
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt", *in_c):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    program(tmp_path, "python")
    program(tmp_path, "pip")
    program(tmp_path, "gateway")
    return tmp_path


def program(folder: Path, name: str, more: str = "") -> None:
    file = folder / ".venv/bin" / name
    file.write_text(NOTE.format(calls=folder / "calls", more=more))
    file.chmod(0o755)


def serve(folder: Path, *words: str) -> tuple[str, list[str]]:
    """What a person reads, and which packages pip installs, each with the index that is named."""
    make = ["make", "serve", *words]
    done = subprocess.run(make, cwd=folder, capture_output=True, text=True, check=True)
    calls = (folder / "calls").read_text().splitlines()
    assert calls[-1] == "gateway serve --host 127.0.0.1 --port 8000"
    installs = [call for call in calls if call.startswith("pip install")]
    return done.stdout, [call.partition("--constraint constraints.txt ")[2] for call in installs]


@pytest.mark.skipif(shutil.which("make") is None, reason=missing("make"))
def test_torch_comes_from_the_index_that_is_named(folder: Path) -> None:
    text, installs = serve(folder, "TORCH_INDEX=http://127.0.0.1:9/cpu", "GPUS=")
    assert installs == ["--index-url http://127.0.0.1:9/cpu torch", "--editable .[engine]"]
    assert "GPU" not in text
    # The second time nothing is installed.
    assert serve(folder, "GPUS=")[1] == installs


@pytest.mark.skipif(shutil.which("make") is None, reason=missing("make"))
def test_the_option_is_named_where_there_is_no_gpu(folder: Path) -> None:
    text, installs = serve(folder, "GPUS=")
    assert installs == ["--editable .[engine]"]
    assert "There is no GPU here. make serve TORCH_INDEX=URL takes torch's CPU build" in text


@pytest.mark.skipif(shutil.which("make") is None, reason=missing("make"))
@pytest.mark.parametrize("gpus", ["/dev/nvidiactl", ""])
def test_it_is_not_where_there_is_one_or_another_index(folder: Path, gpus: str) -> None:
    program(folder, "pip", "" if gpus else "echo \"global.index-url='http://127.0.0.1:9/simple'\"")
    assert "GPU" not in serve(folder, f"GPUS={gpus}")[0]
