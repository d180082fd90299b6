"""The only entry to experiments: which requests take it, and which never do."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from litestar import Litestar

from benchmarks.request_path import Recorder
from gateway.config import Experiment as Settings
from gateway.experiments.feedback_ring import name_of
from schemas.errors import ModelNotFound
from tests.gateway.serving import application, chat, endpoint, running

ALONE = endpoint(("a", "echo", 100))
WITH_FEEDBACK = msgspec.structs.replace(ALONE, experiment=Settings(feedback={"liked": "higher"}))
TWO = endpoint(("a", "echo", 100), ("b", "echo", 0))


async def visited(app: Litestar, **fields: Any) -> set[str]:
    """The modules of `gateway.experiments` that one chat enters."""
    recorder = Recorder()
    async with running(app) as client:
        with recorder.recording():
            answer = await chat(client, **fields)
        assert answer.status_code == 200
    # A look at the guardrails, four times a second, is no part of the chat.
    files = {function.file for function in recorder.take().worker if ".stopped" not in function.name}
    assert "gateway/http/request.py" in files  # the recorder records
    return {file for file in files if file.startswith("gateway/experiments/")}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_an_experiment_never_visits_experiments(stream: bool) -> None:
    assert await visited(application(chat=ALONE), stream=stream) == set()


@pytest.mark.parametrize("arms", [WITH_FEEDBACK, TWO], ids=["feedback", "two arms"])
async def test_a_request_with_an_experiment_enters_once(arms: Any) -> None:
    assert "gateway/experiments/experiments.py" in await visited(application(chat=arms))


async def test_an_endpoint_of_one_served_entity_has_a_report_if_it_takes_feedback() -> None:
    app = application(alone=ALONE, chat=WITH_FEEDBACK)
    async with running(app) as client:
        await chat(client)
        report = await client.get("/serving-endpoints/chat/experiment")
        assert report.json()["arms"][0]["exposures"] == 1
        refused = await client.get("/serving-endpoints/alone/experiment")
        assert refused.status_code == 404
        assert "The endpoint 'alone' has no experiment" in refused.text
    with pytest.raises(ModelNotFound):
        app.state.service.experiments.of("alone")


async def test_feedback_that_could_not_be_counted_is_counted_when_it_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = application(chat=WITH_FEEDBACK)
    async with running(app) as client:
        answer = await chat(client)
        experiments, name = app.state.service.experiments, name_of(answer.headers["x-request-id"], b"")
        with monkeypatch.context() as patched:
            patched.setattr("gateway.experiments.experiment.Experiment.feedback", Mock(side_effect=RuntimeError))
            with pytest.raises(RuntimeError):
                experiments.feedback(name, "liked", 1.0)
        experiments.feedback(name, "liked", 1.0)
        report = await client.get("/serving-endpoints/chat/experiment")
        assert report.json()["arms"][0]["means"]["liked"] == 1.0


@pytest.mark.slow
async def test_feedback_for_an_endpoint_without_an_experiment_is_refused() -> None:
    async with running(application(chat=ALONE)) as client:
        answer = await chat(client)
        feedback = {"request_id": answer.headers["x-request-id"], "metric": "liked", "value": 1}
        refused = await client.post("/v1/feedback", json=feedback)
        assert refused.status_code == 400
        assert "No answer with this id is remembered" in refused.text
