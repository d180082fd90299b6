"""After which errors another served entity is asked, and what of an error a client may see."""

from __future__ import annotations

import errno
import sqlite3

import pytest
from structlog.testing import capture_logs

from gateway.errors import to_client_error
from schemas import errors
from schemas.errors import is_failover_eligible
from tests.gateway.serving import application, chat, endpoint, running

ELIGIBLE = [
    "BackendUnavailable",
    "BackendFailed",
    "Incomplete",
    "Overloaded",
    "ShuttingDown",
    "RateLimited",
    "ModelNotFound",
]
NOT_ELIGIBLE = ["BackendTimeout", "InvalidRequest", "ContextLengthExceeded", "InternalError"]


@pytest.mark.parametrize("name", ELIGIBLE + NOT_ELIGIBLE)
def test_failover_depends_on_the_kind_of_error(name: str) -> None:
    error = getattr(errors, name)("It failed.")
    assert is_failover_eligible(error) is (name in ELIGIBLE)


def test_a_bug_is_not_passed_to_another() -> None:
    assert not is_failover_eligible(KeyError())


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_that_shuts_down_is_passed_over(stream: bool) -> None:
    async with running(application(chat=endpoint(("a", "shutting-down", 100), ("b", "echo", 0)))) as client:
        answer = await chat(client, stream=stream)
    assert (answer.status_code, answer.headers["served-model-name"]) == (200, "b")


def test_an_error_meant_for_clients_is_sent_as_it_is() -> None:
    error = errors.BackendFailed("It failed.")
    assert to_client_error(error, "id") is error


@pytest.mark.parametrize("error", [KeyError("a secret"), errors.GatewayError("a secret")])
def test_any_other_error_is_a_fixed_sentence_and_a_line_in_the_log(error: Exception) -> None:
    with capture_logs() as entries:
        failure = to_client_error(error, "id")
    assert type(failure) is errors.InternalError
    assert "secret" not in failure.message
    (entry,) = entries
    assert (entry["event"], entry["request_id"], entry["error"]) == ("request.broke", "id", type(error).__name__)
    assert "secret" not in str(entry)


def _full() -> sqlite3.Error:
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA max_page_count = 2")
        database.execute("CREATE TABLE t (x)")
        with pytest.raises(sqlite3.OperationalError) as caught:
            database.execute("INSERT INTO t VALUES (zeroblob(100000))")
    return caught.value


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError(errno.EROFS, "read-only"), _full()])
def test_a_full_disk_is_no_bug(error: Exception) -> None:
    with capture_logs() as entries:
        failure = to_client_error(error, "id")
    assert (type(failure), failure.request_id) == (errors.BackendUnavailable, "id")
    assert [entry["event"] for entry in entries] == ["storage.failed"]


@pytest.mark.parametrize("error", [OSError(errno.ECONNRESET, "x"), sqlite3.OperationalError("no such table")])
def test_another_error_of_the_system_is(error: Exception) -> None:
    assert type(to_client_error(error, "id")) is errors.InternalError
