"""Deployments: pure functions from one state to the next."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.base import Health
from gateway.config import ConfigError, Endpoint, Experiment, MetricGuardrail, Paired, Price, ServedEntity, Shadow
from gateway.deployment.deployments import Deployment, State, changed, deployed, entity_name, mixed_kinds, settled
from schemas.catalog import Change
from schemas.catalog import ServedEntity as ListedEntity
from schemas.errors import Conflict, InvalidRequest, ModelNotFound

READY, LOADING, FAILED = Health("ready"), Health("loading"), Health("failed")
BACKENDS = {"s": READY, "t": READY}
NOW = 10**18


def endpoint(*backends: str) -> Endpoint:
    """Served entities named like their backends; the first gets all requests."""
    shares = (100, *[0] * len(backends))
    return Endpoint(
        served_entities=tuple(
            ServedEntity(name=name, backend=name, traffic_percentage=share)
            for name, share in zip(backends, shares, strict=False)
        )
    )


OLD = Deployment(endpoint=endpoint("s"), version=3, since=1)


def update(*entities: ListedEntity, name: str = "chat", action: str = "update") -> Change:
    return Change(action=action, endpoint=name, served_entities=entities)  # type: ignore[arg-type]


def test_the_state_overrides_the_configuration() -> None:
    endpoints = {"kept": endpoint("s"), "changed": endpoint("s"), "deleted": endpoint("s")}
    state = State(endpoints={"changed": OLD, "deleted": None, "new": OLD})
    found = deployed(endpoints, state, BACKENDS)
    assert found == {"kept": Deployment(endpoint=endpoint("s")), "changed": OLD, "new": OLD}


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (Deployment(), "endpoints.new: there is neither `endpoint` nor `pending`"),
        (Deployment(endpoint=endpoint("gone")), "endpoints.new.gone: no backend is called 'gone'"),
        (Deployment(endpoint=endpoint("s"), pending=endpoint("gone")), "no backend is called 'gone'"),
    ],
)
def test_a_state_that_contradicts_the_configuration_is_refused(deployment: Deployment, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        deployed({}, State(endpoints={"new": deployment}), BACKENDS)
    assert message in str(caught.value)


def test_a_filter_that_is_gone_from_the_configuration_is_named() -> None:
    filtered = replace(endpoint("s"), filters=("red",))
    for deployment in (Deployment(endpoint=filtered), Deployment(endpoint=endpoint("s"), pending=filtered)):
        state = State(endpoints={"chat": deployment})
        assert deployed({}, state, BACKENDS, ["red"]) == {"chat": deployment}
        with pytest.raises(ConfigError) as caught:
            deployed({}, state, BACKENDS, ["reds"])
        message = "endpoints.chat.filters: there is no filter 'red'; did you mean 'reds'? (from the state file)"
        assert str(caught.value) == message


def test_a_pending_configuration_comes_into_force_when_its_new_backends_are_ready() -> None:
    waiting = Deployment(endpoint=endpoint("s"), pending=endpoint("t", "s"), version=3, since=1)
    assert settled(waiting, {"s": FAILED, "t": LOADING}, NOW) == waiting
    assert settled(waiting, {"s": FAILED, "t": READY}, NOW) == Deployment(endpoint("t", "s"), version=4, since=NOW)


def test_a_pending_configuration_is_given_up_when_a_new_backend_has_failed() -> None:
    waiting = Deployment(endpoint=endpoint("s"), pending=endpoint("t"), version=3, since=1)
    given_up = settled(waiting, {"s": READY, "t": FAILED}, NOW)
    assert given_up == Deployment(endpoint("s"), version=3, since=1, failed="The backend 't' has failed.")


def test_a_new_endpoint_is_never_given_up_and_keeps_its_time() -> None:
    new = Deployment(pending=endpoint("t"), version=0, since=5)
    assert settled(new, {"t": FAILED}, NOW) == new
    assert settled(new, {"t": READY}, NOW) == Deployment(endpoint("t"), version=1, since=5)
    assert new.serving == endpoint("t")


def test_only_backends_that_get_requests_are_waited_for() -> None:
    pending = endpoint("s", "t")  # "t" has no share
    assert settled(Deployment(endpoint("s"), pending), {"s": READY, "t": LOADING}, NOW).endpoint == pending


def test_an_endpoint_is_created_updated_and_deleted() -> None:
    entity = ListedEntity("a", "s/echo")
    created = changed({}, update(entity, action="create"), BACKENDS, NOW)
    expected = Endpoint(served_entities=(ServedEntity(name="a", backend="s", model="echo"),))
    assert created == Deployment(expected, version=1, since=NOW)
    updated = changed({"chat": OLD}, update(entity), BACKENDS, NOW)
    assert updated == Deployment(expected, version=4, since=NOW)
    assert changed({"chat": OLD}, update(action="delete"), BACKENDS, NOW) is None


def test_a_repeated_change_is_none() -> None:
    once = changed({"chat": OLD}, update(ListedEntity("a", "s/echo")), BACKENDS, NOW)
    assert once is not None
    assert changed({"chat": once}, update(ListedEntity("a", "s/echo")), BACKENDS, NOW + 1) is once


def test_arms_that_cannot_answer_the_same_requests_are_refused() -> None:
    change = update(ListedEntity("a", "s", 50), ListedEntity("b", "t", 50))
    for generates in ({"s": True, "t": True}, {"s": True}):  # "t" is not loaded: it is not known
        assert changed({"chat": OLD}, change, BACKENDS, NOW, generates) is not None
    with pytest.raises(InvalidRequest, match="'a' generates text, and 'b' makes embeddings only"):
        changed({"chat": OLD}, change, BACKENDS, NOW, {"s": True, "t": False})


def test_arms_of_an_endpoint_for_embeddings_need_not_generate_text() -> None:
    mixed = Endpoint(served_entities=(ServedEntity(name="a", backend="s"), ServedEntity(name="b", backend="t")))
    assert mixed_kinds(mixed, {"s": True, "t": False}) is not None
    assert mixed_kinds(replace(mixed, task="embeddings"), {"s": True, "t": False}) is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (update(ListedEntity("a", "s"), action="create"), Conflict),
        (update(ListedEntity("a", "s"), name="a/b", action="create"), InvalidRequest),
        (update(ListedEntity("a", "s"), name="a" * 64, action="create"), InvalidRequest),
        (update(ListedEntity("a", "s"), name="none"), ModelNotFound),
        (update(name="none", action="delete"), ModelNotFound),
        (update(ListedEntity("a", "gone")), InvalidRequest),
        (update(ListedEntity("a", "s", 90)), InvalidRequest),
        (update(ListedEntity("a", "s", 101)), InvalidRequest),
        (update(ListedEntity("a", "s"), name="waiting"), Conflict),
    ],
)
def test_an_impossible_change_is_refused(change: Change, error: type[Exception]) -> None:
    waiting = Deployment(endpoint=endpoint("s"), pending=endpoint("t"))
    with pytest.raises(error):
        changed({"chat": OLD, "waiting": waiting}, change, BACKENDS, NOW)


def test_settings_that_databricks_api_cannot_express_are_kept() -> None:
    before = Endpoint(
        served_entities=(
            ServedEntity(name="a", backend="s"),
            ServedEntity(name="b", backend="s", traffic_percentage=0, shadow=Shadow(), paired=Paired()),
        )
    )

    def after(*entities: ListedEntity) -> list[tuple[bool, bool]]:
        found = changed({"chat": Deployment(endpoint=before)}, update(*entities), BACKENDS, NOW)
        assert found is not None
        return [(each.shadow is not None, each.paired is not None) for each in found.serving.served_entities]

    assert after(ListedEntity("a", "s", 100), ListedEntity("b", "t", 0)) == [(False, False), (True, True)]
    assert after(ListedEntity("a", "s", 50), ListedEntity("b", "s", 50)) == [(False, False), (False, True)]
    assert after(ListedEntity("b", "s", 100)) == [(False, False)]
    with pytest.raises(InvalidRequest, match="a shadow goes after it"):
        after(ListedEntity("b", "s", 0), ListedEntity("a", "s", 100))


def test_the_price_and_the_task_of_a_model_are_kept_as_long_as_it_stays() -> None:
    price = Price(prompt=1.0)
    arm = ServedEntity(name="a", backend="s", model="echo", task="completions", price=price)
    before = Deployment(endpoint=Endpoint(served_entities=(arm,), task="completions"))

    def after(*entities: ListedEntity) -> list[tuple[str | None, Price | None]]:
        found = changed({"chat": before}, update(*entities), BACKENDS, NOW)
        assert found is not None
        return [(each.task, each.price) for each in found.serving.served_entities]

    assert after(ListedEntity("a", "s/echo", 60), ListedEntity("b", "s/echo", 40)) == [
        ("completions", price),
        (None, None),
    ]
    # A price of another model would be wrong.
    assert after(ListedEntity("a", "s/other")) == [(None, None)]
    assert after(ListedEntity("a", "t/echo")) == [(None, None)]


def test_a_change_with_which_the_server_would_not_start_again_is_refused() -> None:
    guardrails = (MetricGuardrail(metric="cost", worse_than=0.1),)
    arms = tuple(
        ServedEntity(name=name, backend="s", traffic_percentage=50, price=Price(prompt=1.0)) for name in ("a", "b")
    )
    before = Deployment(endpoint=Endpoint(served_entities=arms, experiment=Experiment(guardrails=guardrails)))
    shares = update(ListedEntity("a", "s", 10), ListedEntity("b", "s", 90))
    assert changed({"chat": before}, shares, BACKENDS, NOW) is not None
    with pytest.raises(InvalidRequest, match="'cost' needs the price of 'b'"):
        changed({"chat": before}, update(ListedEntity("a", "s", 50), ListedEntity("b", "t", 50)), BACKENDS, NOW)


def test_the_name_of_an_entity_is_its_backend_and_model() -> None:
    assert entity_name(ServedEntity(name="a", backend="s")) == "s"
    assert entity_name(ServedEntity(name="a", backend="s", model="m/n")) == "s/m/n"
