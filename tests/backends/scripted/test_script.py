"""Model names that select scripts and faults."""

from __future__ import annotations

import pytest

from backends.scripted.script import ERRORS, SCRIPTS, InjectedFault, script_for


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_name_of_a_script_selects_it(name: str) -> None:
    assert script_for(name) is SCRIPTS[name]


@pytest.mark.parametrize("name", ERRORS)
def test_the_name_of_a_fault_selects_it(name: str) -> None:
    assert script_for(name).fault == script_for(f"{name}-before").fault == InjectedFault(name)
    assert script_for(f"{name}-after-3").fault == InjectedFault(name, 3)


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown fault 'nonsense'"):
        InjectedFault("nonsense")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("hang-after-12", InjectedFault("hang", 12)),
        ("internal-error", InjectedFault("internal-error")),
        ("timeout-before", InjectedFault("timeout")),
        ("nobody-knows", None),
        ("error-after-x", None),
        ("", None),
    ],
)
def test_names_select_faults(name: str, fault: InjectedFault | None) -> None:
    assert script_for(name).fault == fault
