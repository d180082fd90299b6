"""The pairs that differ most: which are kept, and that all workers see them."""

from __future__ import annotations

from pathlib import Path

from gateway.experiments.pairs.agreement import Example
from gateway.experiments.pairs.examples import LONGEST, MOST, Examples, shortened


def example(name: str, difference: float) -> Example:
    return Example(name, difference, 0.5, "2-3")


def note(examples: Examples, name: str, difference: float) -> None:
    examples.note("arm", difference, lambda: example(name, difference))


def test_the_worst_are_kept_in_either_direction() -> None:
    examples = Examples()
    for place in range(3 * MOST):
        note(examples, f"r{place}", (-1) ** place * (place % 17) / 10)
    found = [abs(each.log_likelihood_difference) for each in examples.of("arm")]
    assert found == sorted(found, reverse=True)
    assert (len(found), found[0]) == (MOST, 1.6)
    assert examples.of("another") == ()


def test_what_is_not_kept_is_not_even_made() -> None:
    examples = Examples()
    for place in range(MOST):
        note(examples, f"r{place}", 1.0)
    examples.note("arm", 0.5, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert len(examples.of("arm")) == MOST


def test_workers_share_them_and_a_new_worker_continues(tmp_path: Path) -> None:
    one, other = (Examples(tmp_path / "examples" / "key", slot) for slot in (0, 1))
    note(one, "of-0", 1.0)
    note(other, "of-1", 2.0)
    assert [each.request_id for each in one.of("arm")] == ["of-1", "of-0"]
    note(Examples(tmp_path / "examples" / "key", 0), "of-its-successor", 3.0)
    assert [each.request_id for each in other.of("arm")] == ["of-its-successor", "of-1", "of-0"]


def test_a_text_is_shortened() -> None:
    assert shortened("short") == "short"
    assert len(shortened("x" * 10_000)) == LONGEST
