"""Figures of several gateways in one report."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import main
from gateway.experiments.experiment import Experiment
from gateway.experiments.shared.replicas import add_figures
from tests.gateway.experiments.test_experiment import Traffic
from tests.gateway.serving import PAIR, endpoint


def exposures(experiment: Experiment) -> int:
    return sum(arm.exposures for arm in experiment.report().arms)


def test_the_figures_of_another_gateway_are_added_once(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    ours = Experiment("chat", PAIR, here)
    theirs = [Experiment("chat", PAIR, there, slot) for slot in (0, 1)]
    # The other gateway has also served a split that this one has not, and another endpoint.
    split = Experiment("chat", endpoint(("a", "scripted", 90), ("b", "scripted", 10)), there)
    other = Experiment("other", PAIR, there)
    for experiment, count in ((ours, 100), (theirs[0], 30), (theirs[1], 30), (split, 20), (other, 7)):
        Traffic(PAIR, experiment).send(count)
    command = ["experiment", "add", str(there), "--to", str(here), "--label", "replica-2"]
    for _ in range(2):
        result = CliRunner().invoke(main, command)
        assert (result.exit_code, result.output) == (0, f"3 files of counters in {here}\n"), result.output
        assert exposures(ours) == 180
    Traffic(PAIR, theirs[0]).send(5)
    add_figures(there, here, "replica-2")
    assert exposures(ours) == 185
    # Those of this gateway are not sent back with what was added to them.
    add_figures(here, there, "replica-1")
    assert exposures(theirs[0]) == 185
    assert [each.name for each in here.iterdir()] == [ours.key]
    with pytest.raises(ValueError, match="no label"):
        add_figures(there, here, "../x")
