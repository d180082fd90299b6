"""One plain request for a stream on the fast path: each part of its answer is written where it arrives."""

from __future__ import annotations

from time import monotonic

from adapters.optional import RunWriter, writes_runs
from gateway.errors import to_client_error
from gateway.http.direct.request import DirectRequest
from gateway.http.observation.observer import RequestObserver
from schemas.errors import GatewayError, ShuttingDown
from schemas.ir import Events, Generate, Usage


class StreamedRequest(DirectRequest):
    """Such a request, which is the sink of its answer (`backends.direct.StreamSink`).

    Attributes:
        full: whether the client is slow: nothing is taken until `resume`.
        outbox: the client's, once the answer has begun.
    """

    __slots__ = ("_encoder", "_head", "full", "outbox", "streams")

    def _get_ready(self) -> None:
        if self._is_ready:
            return
        request = self._account.request
        assert isinstance(request, Generate)
        self._encoder = self._codec.encoder(request)
        self._exchange.get_ready()
        super()._get_ready()
        headers = self._encoder.headers
        self._head = headers, self._fields(self._encoder.media_type, headers)

    def _listen(self) -> None:
        self.full = self.streams = False
        self._exchange.hear_stream(RequestObserver(self._account), self)

    # --- for the client's connection --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Take nothing more: the client has not taken what was written."""
        self.full = True
        self._account.stage = "send"
        self._exchange.pause()

    def resume(self) -> None:
        """Go on."""
        self.full = False
        self._account.stage = "stream"
        self._exchange.resume()

    def lose_client(self) -> None:
        """End a stream whose client has left."""
        self._exchange.leave()
        try:
            self._account.settle(self._account.outcome)  # its limits are for the client's next request, at once
        finally:
            self._close()

    def cancel(self) -> None:
        """End a stream that takes too long for a server that stops."""
        self._exchange.leave()
        if self._account.service.draining:
            self._write(self._encoder.fail(ShuttingDown("The server is shutting down.")))
            self._client.end()
        else:
            self._client.end(cut=True)
        self._account.settle("cancelled")
        self._close()

    # --- backends.direct.StreamSink ---------------------------------------------------------------------------------

    def begin(self, events: Events) -> bool:
        """Send the headers and the first events."""
        account = self._account
        assert isinstance(account.request, Generate)
        try:
            if not self._is_ready:
                self._get_ready()
            encoder = self._encoder
            data = encoder.feed(events)
        except Exception:  # whatever it is, the task finds it, too
            return False
        is_whole = isinstance(events[-1], Usage)
        if encoder.status_waits and not data and not is_whole:
            return False
        account.first_event = monotonic() - account.began
        account.stage = "stream"
        account.status = 200
        if is_whole:
            self._note(events)
        headers, head = self._head
        if encoder.headers is not headers:  # they may depend on the events
            head = self._fields(encoder.media_type, encoder.headers)
        self.outbox = self._client.open(head, _chunk(data))
        self.streams = True
        self.outbox.flush_early()
        if self._client.write_paused:  # by an answer before this one, maybe: nobody says so again
            self.pause()
        if not is_whole:  # no end that has to be counted first
            account.note_batch(events)
        return True

    def take(self, events: Events) -> None:
        """Send more events."""
        data = self._encoder.feed(events)
        self._note(events)
        self._write(data)

    def take_rest(self, events: Events) -> None:
        """Send more events that came with the first ones."""
        data = self._encoder.feed(events)
        self._account.note_rest(events)
        self._note_end(events)
        self._write(data)

    def note_times(self, times: list[float]) -> None:
        """Count outputs that were written to the outbox."""
        self._account.note_outputs(times)

    def run_writer(self, choice: int) -> RunWriter | None:
        """What writes texts of a choice in the client's protocol."""
        encoder = self._encoder
        return encoder.run_writer(choice) if writes_runs(encoder) else None

    def end(self) -> None:
        """Send the end."""
        try:
            self._client.end()
        finally:  # also if the client's next request, which begins with that, fails
            self._close()

    def fail(self, error: Exception) -> None:
        """Send the error, with a status of its own if nothing was sent yet."""
        account = self._account
        if not self.streams:
            self._answer(self._refusal(error))
            return
        failure = to_client_error(error, account.request_id)
        account.message = failure.message
        self._end_with(failure)

    def _close(self) -> None:
        super()._close()
        # Nothing is asked of it any more, and it has this sink: no circle is left to the garbage collector.
        self._exchange = None  # type: ignore[assignment]

    def _end_with(self, failure: GatewayError) -> None:
        is_cut = True
        try:
            self._account.settle(failure.kind)
            self._account.outcome = failure.kind  # also if it was to be counted as another one
            self._write(self._encoder.fail(failure))
            is_cut = self._encoder.abort_after_error
        finally:  # also if there is no record of it
            self._client.end(cut=is_cut)
            self._close()

    def _note(self, events: Events) -> None:
        """Count what is about to be sent."""
        self._account.note_batch(events)
        self._note_end(events)

    def _note_end(self, events: Events) -> None:
        """Count the end, if it is about to be sent."""
        account = self._account
        if isinstance(last := events[-1], Usage):
            account.usage = last
            account.status = account.status or 200
            account.settle("ok")

    def _write(self, data: bytes) -> None:
        if data:
            self.outbox.write(_chunk(data))


def _chunk(data: bytes) -> bytes:
    # RFC 9112, section 7.1: an empty chunk would be the end.
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
