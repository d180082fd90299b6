"""The circuit breaker: what counts as a failure of the server, and what closes the breaker again."""

from __future__ import annotations

import pytest

from backends.remote.resilience.breaker import COUNTS, Breaker
from schemas.errors import (
    BackendError,
    BackendFailed,
    BackendUnavailable,
    Fault,
    GatewayError,
    Incomplete,
    InvalidRequest,
    Overloaded,
)


def test_every_fault_is_classified() -> None:
    assert set(COUNTS) == set(Fault)


@pytest.mark.parametrize("fault", Fault)
def test_a_fault_counts_as_classified(fault: Fault) -> None:
    breaker = Breaker(1)
    breaker.record_failure(BackendError("x", fault=fault))
    assert breaker.open == COUNTS[fault]


@pytest.mark.parametrize("fault", Fault)
def test_a_code_alone_is_no_fault(fault: Fault) -> None:
    """An upstream chooses the code of its errors, and cannot open the breaker with it."""
    breaker = Breaker(1)
    breaker.record_failure(InvalidRequest("x", code=fault.value))
    breaker.record_failure(BackendFailed("x", code=fault.value))
    assert not breaker.open


@pytest.mark.parametrize("status", [500, 502, 504])
def test_consecutive_failures_open_the_breaker_and_a_success_closes_it(status: int) -> None:
    breaker = Breaker(3)
    breaker.record_status(status)
    breaker.record_failure(Incomplete("x", fault=Fault.TRUNCATED))
    assert not breaker.open
    breaker.record_failure(BackendUnavailable("x", fault=Fault.CONNECT))
    assert breaker.open
    breaker.record_success()
    assert not breaker.open


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 503])
def test_a_refused_request_shows_that_the_server_works(status: int) -> None:
    breaker = Breaker(2)
    breaker.record_status(500)
    breaker.record_status(status)
    breaker.record_status(500)
    assert not breaker.open


@pytest.mark.parametrize(
    "error", [InvalidRequest("x"), Overloaded("x"), BackendFailed("x", code="upstream_error"), BackendUnavailable("x")]
)
def test_an_error_counted_by_its_status_is_not_counted_twice(error: GatewayError) -> None:
    breaker = Breaker(1)
    breaker.record_failure(error)
    assert not breaker.open
