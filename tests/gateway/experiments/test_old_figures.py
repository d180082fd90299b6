"""Old figures are removed, those of configured endpoints never."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gateway.access.keys import Keys
from gateway.config import Endpoint
from gateway.experiments.experiments import Experiments
from gateway.experiments.old_figures import KEPT_DAYS, remove_old
from gateway.observability.metrics import Metrics
from tests.gateway.serving import PAIR, endpoint

OTHER = endpoint(("a", "echo", 50), ("c", "echo", 50))
MONTHS_AGO = time.time() - 3 * KEPT_DAYS * 86400


def serving(folder: Path, **endpoints: Endpoint) -> Experiments:
    found = Experiments(Metrics({}), lambda _: True, Keys(), lambda: None, folder)
    found.serve({name: (each, 1, 0) for name, each in endpoints.items()})
    return found


def grow_old(folder: Path) -> None:
    for each in (*folder.rglob("*"), folder):
        os.utime(each, (MONTHS_AGO, MONTHS_AGO))


async def test_only_figures_that_nobody_goes_on_with_are_removed(tmp_path: Path) -> None:
    first = serving(tmp_path, chat=PAIR, gone=PAIR, replaced=PAIR)
    keys = {name: first.of(name).key for name in ("chat", "gone", "replaced")}
    await first.aclose()
    grow_old(tmp_path)
    (tmp_path / keys["replaced"]).touch()  # in use until a moment ago
    second = serving(tmp_path, chat=PAIR, replaced=OTHER)
    left = set(os.listdir(tmp_path))
    assert left >= {keys["chat"], keys["replaced"], second.of("replaced").key, "answers"}
    assert keys["gone"] not in left
    await second.aclose()


async def test_figures_whose_endpoint_is_changed_now_are_in_use_until_now(tmp_path: Path) -> None:
    experiments = serving(tmp_path, chat=PAIR)
    key = experiments.of("chat").key
    grow_old(tmp_path)
    experiments.serve({"chat": (OTHER, 2, 0)})
    assert remove_old(tmp_path, {experiments.of("chat").key}, time.time()) == []
    grow_old(tmp_path / key)
    assert remove_old(tmp_path, {experiments.of("chat").key}, time.time()) == [key]
    await experiments.aclose()
