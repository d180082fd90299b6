"""Accounting for one request: its outcome, in metrics, in its experiment and in the log line `request.finished`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from time import monotonic

from backends.cohorts import Steps
from gateway.config import BILLION
from gateway.experiments.outcome import Outcome
from gateway.http.record import CLIENT_GONE, RequestState, log_record, logged, record_of
from schemas.ir import Delta, Events, Finished, Generate, Usage


class RequestAccount(RequestState, eq=False):
    """Notes what happens to one request, and counts it once at its end."""

    def note_batch(self, batch: Events) -> None:
        """Note what a stream's batch has, which was just encoded. It runs for every chunk of every stream."""
        if self.first_token is None:
            self.note_first_token(batch)
        else:
            self.note_next_token(batch)
        # The usual batch is a text, which has no finish reason.
        if len(batch) > 1 or type(batch[0]) is not Delta or self.texts is not None:
            self.note_reasons(batch)

    def note_rest(self, batch: Events) -> None:
        """Note the rest of a stream's first batch: no time has passed since its begin."""
        last = batch[-1]
        if type(last) is Usage and last.completion_tokens > 1:  # as in `note_first_token`
            self.first_token = self.count_interval = None
        elif self.first_token is None:
            self.note_first_token(batch)
        self.note_reasons(batch)

    def note_first_token(self, batch: Events) -> None:
        """Note the time if a stream's batch has its first text, reasoning or tool call."""
        last = batch[-1]
        # All of several tokens in one batch: the backend did not stream, and when its first token was made is unknown.
        if type(last) is Usage and last.completion_tokens > 1:
            return
        if _has_output(batch):
            self.last_token = monotonic()
            self.first_token = self.last_token - self.began
            self.count_interval = self.service.metrics.inter_token_latency.at(self.series)

    def note_next_token(self, batch: Events) -> None:
        """Count the time since the last output, if a stream's batch has some."""
        event = batch[-1]  # the usual batch is a text, maybe behind what is relayed; this runs for every chunk
        if (type(event) is Delta and event.text) or _has_output(batch):
            self.note_outputs((monotonic(),))

    def note_outputs(self, times: Iterable[float]) -> None:
        """Count the time from each output to the next, of which none was the first; on the monotonic clock."""
        if (count := self.count_interval) is not None:
            last = self.last_token
            for time in times:
                count(time - last)
                last = time
            self.last_token = last

    def note_reasons(self, batch: Events) -> None:
        """Note the finish reasons in a batch, and its texts if they are exported."""
        for event in batch:
            if type(event) is Finished:
                self.finish_reasons.append(event.reason)
        if self.texts is not None:
            for event in batch:
                if isinstance(event, Delta):
                    self.texts.setdefault(event.choice, []).append(event.text)

    def end(self, outcome: str) -> None:
        """Note the outcome, once, and log the request (`settle`, `_write_down`)."""
        self.settle(outcome)
        if not self.is_logged:
            self._write_down()

    def settle(self, outcome: str) -> None:
        """Note the outcome, and count it in the experiment, limits and usage, once, before the client sees it.

        Before: the client may ask another worker for the report, or send feedback, as soon as it has the answer's end;
        and a worker that is killed has counted each answer whose end a client has.
        """
        # Reached twice in the usual case: by the responder when the outcome is known, and by `close`.
        if self.duration is not None:
            return
        self.outcome = outcome
        self.duration = monotonic() - self.began
        self._charge()
        # `exposure` is None without an experiment, and before routing.
        if self.exposure is not None or self.service.exporter is not None:
            # A client that waits no longer has left, whether it closes its connection or has said before when it will.
            outcome = CLIENT_GONE if self.gave_up else outcome
            own = self.own_failure or outcome
            streamed = isinstance(self.request, Generate) and self.request.stream
            reasons = tuple(self.finish_reasons)
            # An exported row has the very values that the experiment counts.
            plan, target = self.plan, self.target
            elsewhere = plan is not None and target is not None and target is not plan.targets[0]
            times = self.first_token, self.duration
            self.ended = Outcome(outcome, own, streamed, *times, self.usage, reasons, elsewhere)
            if self.exposure is not None:
                self.exposure.end(self.ended)
        if self.plan is not None and (ledger := self.service.ledger_of(self.plan.targets[0].endpoint)) is not None:
            record = record_of(self)
            ledger.put(record)
            self.record = record

    def _write_down(self) -> None:
        """Log the request, and show it in the console if it reached an endpoint or failed."""
        self.is_logged = True
        record = self.record = self.record or record_of(self)
        # Answered listings are no requests to a model.
        if self.outcome != "ok" or (self.plan is not None and self.service.requests.takes_usual(monotonic())):
            self.service.requests.add(logged(self, record))
        unit = self.plan.unit if self.plan is not None else None
        log_record(
            record,
            unit=unit.source if unit is not None else None,
            priced=self.target is not None and self.target.entity.price is not None,
            first_event=self.first_event,
            trace_id=self.trace_id,
        )

    def count_limited(self) -> None:
        """Count a refusal for a limit."""
        self.service.metrics.limited.add((self.endpoint or "", self.key.name if self.key is not None else ""))

    def _charge(self) -> None:
        """Work out the cost, and correct what the request counts for in its limits."""
        usage, tokens = self.usage, None
        if self.cache_hit:
            tokens = 0  # no model has done anything
        elif usage is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens
            if self.target is not None and (price := self.target.entity.price) is not None:
                self.cost = price.of(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens or 0)
        elif not self.first_event:
            tokens = 0  # the model has done nothing; else the estimate is the best that is known of a broken answer
        if self.ticket is not None:
            self.service.limiter.leave(self.ticket, tokens, self.cost / BILLION)

    def close(self) -> None:
        """Count the request in the metrics. Nothing more happens to it."""
        deque(self.closing(), 0)

    def closing(self) -> Steps:
        """The same in steps."""
        self.settle(self.outcome)
        if not self.is_logged:
            self.record = self.record or record_of(self)
            yield
            self._write_down()
        yield
        assert self.duration is not None
        metrics, usage, target = self.service.metrics, self.usage, self.target
        metrics.running.add(-1.0)
        # Every request counts here, also one that never reached a target. Those below need a served entity.
        metrics.requests.add((self.protocol, self.route, self.outcome))
        if self.ignored:
            metrics.ignored_fields.add((self.protocol, self.route), len(self.ignored))
        if target is not None:
            endpoint, served = target.endpoint, target.entity.name
            self.service.counts.add(endpoint, self.duration, ok=self.outcome == "ok")
            metrics.served_requests.add((endpoint, served, self.outcome))
            if self.cost:
                metrics.cost.add((endpoint, served), self.cost / BILLION)
            # Known for complete answers only: failed and cancelled ones would distort the times.
            if usage is not None and not self.cache_hit:
                metrics.count_answer(
                    target.series, usage, self.duration, self.first_token, self.last_token - self.began
                )
            if isinstance(self.request, Generate):
                metrics.count_choices(target.series, self.finish_reasons, self.outcome)


def _has_output(batch: Events) -> bool:
    """Whether a batch has text, reasoning or a tool call."""
    for event in batch:
        if isinstance(event, Delta) and (event.text or event.reasoning or event.tool_calls or event.refusal):
            return True
    return False
