"""A request in flight: buffering, cancelling, going on after a crash, and the counting of crashes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from backends.native.client.inflight import InFlightRequest
from backends.native.protocol.messages import Cancel, Logprobs, Output, Submit
from backends.observation import Phases
from schemas.errors import BackendFailed, BackendUnavailable
from schemas.ir import FinishReason

STOP = FinishReason.EOS


@dataclass
class FakeLink:
    """What is sent over it, and how many sequences are."""

    sent: list[Submit | Cancel] = field(default_factory=list)
    in_flight: int = 0

    def send(self, message: Submit | Cancel) -> None:
        self.sent.append(message)


def in_flight(*seqs: int) -> tuple[InFlightRequest, list[Submit | Cancel]]:
    """A submitted request, and the messages that it sends."""
    link = FakeLink()
    request = InFlightRequest([Submit(seq, (1,), 9) for seq in seqs])
    request.submit(link)
    return request, link.sent


def crash(request: InFlightRequest) -> bool:
    """Kill the engine, and submit to the next one."""
    link = request.link
    assert link is not None
    may_be_poison = request.engine_died()
    request.submit(link)
    return may_be_poison


async def ids(request: InFlightRequest) -> list[int]:
    return [id for output in await request.outputs() for id in output.ids]


async def test_outputs_are_taken_in_one_batch() -> None:
    request, sent = in_flight(4, 5)
    assert [message.seq for message in sent] == [4, 5]
    for output in (Output(4, (7,)), Output(5, (8,)), Output(4, (9,), STOP)):
        request.deliver(output)
    assert [(output.seq, output.ids) for output in await request.outputs()] == [(4, (7,)), (5, (8,)), (4, (9,))]
    assert request.unfinished
    request.deliver(Output(5, error="full"))
    assert not request.unfinished


async def test_outputs_of_a_cancelled_sequence_are_dropped() -> None:
    request, sent = in_flight(4, 5)
    for _ in range(2):
        request.cancel(4)
    assert sent[2:] == [Cancel(4)]
    request.deliver(Output(4, (7,)))
    request.deliver(Output(5, (8,), STOP))
    assert await ids(request) == [8]
    request.close()
    assert sent[3:] == [], "everything has ended"


async def test_buffered_outputs_come_before_the_error() -> None:
    request, _ = in_flight(4)
    request.deliver(Output(4, (7,)))
    request.fail(BackendUnavailable("gone"))
    assert await ids(request) == [7]
    for _ in range(2):
        with pytest.raises(BackendUnavailable):
            await request.outputs()


async def test_the_next_engine_is_given_the_tokens_that_were_received() -> None:
    request, sent = in_flight(4, 5)
    request.deliver(Output(4, (7, 8)))
    request.deliver(Output(5, (1,), STOP))
    crash(request)
    assert sent[2:] == [Cancel(4), Submit(4, (1,), 9, again=True, received=(7, 8))]
    request.deliver(Output(4, (9,), logprobs=(Logprobs(-2.0),)))
    crash(request)
    assert sent[4:] == [Cancel(4), Submit(4, (1,), 9, again=True, received=(7, 8, 9))]
    assert [output.ids for output in await request.outputs()] == [(7, 8), (1,), (9,)]


async def test_an_error_of_the_next_engine_is_delivered() -> None:
    request, _ = in_flight(4)
    request.deliver(Output(4, (7, 8)))
    crash(request)
    request.deliver(Output(4, error="full", overloaded=True))
    assert await request.outputs() == [Output(4, (7, 8)), Output(4, error="full", overloaded=True)]
    assert not request.unfinished


def test_two_crashes_at_one_token_quarantine_the_request() -> None:
    request, _ = in_flight(4)
    assert not crash(request)
    assert not request.quarantined
    assert crash(request)
    assert request.quarantined
    request.deliver(Output(4, (7,)))
    assert not request.quarantined, "it got past the token"


def test_a_request_that_was_not_submitted_is_not_to_blame() -> None:
    request = InFlightRequest([Submit(4, (1,), 9)])
    assert not any(request.engine_died() for _ in range(9))
    assert request.unfinished


async def test_the_fifth_crash_rejects_the_request_wherever_it_was() -> None:
    request, _ = in_flight(4)
    for token in range(4):
        request.deliver(Output(4, (token,)))
        assert not crash(request)
    assert await ids(request) == [0, 1, 2, 3]
    assert not crash(request), "it is rejected, not quarantined"
    with pytest.raises(BackendFailed) as raised:
        await asyncio.wait_for(request.outputs(), 60)
    assert raised.value.code == "engine_dead"


async def test_the_phases_are_those_of_the_engine_that_made_the_first_token() -> None:
    request, _ = in_flight(4, 5)
    assert request.phases == []
    request.deliver(Output(4, (7,), times=(1.0, 2.0)), 3.0)
    request.deliver(Output(4, (8,)), 4.0)
    request.deliver(Output(5, (1,), STOP, times=(1.0, 2.5)), 4.0)
    crash(request)
    request.deliver(Output(4, (9,)), 13.0)
    assert request.phases == [Phases(1.0, 2.0, 3.0, 13.0, 3), Phases(1.0, 2.5, 4.0, 4.0, 1)]
