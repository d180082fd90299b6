"""An engine of the product's own scheduler, a step at a time: what `Replica` is compared with."""

from __future__ import annotations

from backends.native.engine.scheduling.scheduler import Scheduler
from backends.native.engine.scheduling.sequence import Sequence, Work
from backends.native.protocol.messages import Pong, Submit
from benchmarks.fleet.replica import Job, Replica, Shape, Speed, Stepped


class ScheduledReplica(Replica):
    """As `Replica`, thousands of times slower."""

    def __init__(self, number: int, speed: Speed, shape: Shape) -> None:
        super().__init__(number, speed, shape)
        self._scheduler = Scheduler(self.pool, step_tokens=shape.step_tokens, max_sequences=shape.sequences)
        self._jobs: dict[Sequence, Job] = {}
        self._works: list[Work] = []

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._scheduler.running)

    def pong(self) -> Pong:
        """What it answers to a ping."""
        return Pong(0, self.running, len(self._scheduler.waiting), self.pool.free, self.pool.count)

    def submit(self, now: float, job: Job) -> bool:
        """Queue a job."""
        self._order += 1
        request = Submit(self._order, (0,) * job.prompt, job.answer, block_keys=b"".join(job.keys))
        sequence = Sequence(0, request, self._order)
        self._jobs[sequence] = job
        self._scheduler.add(sequence)
        if self.until is None:
            self._begin(now)
        return True

    def end_step(self, now: float) -> Stepped:
        """The present step has ended; the next one begins."""
        stepped = Stepped([], [])
        for work in self._works:
            sequence = work.sequence
            self._scheduler.commit(work)
            if not work.samples:
                continue
            job = self._jobs[sequence]
            sequence.tokens.append(0)
            if sequence.generated == 1:
                job.first, job.cached = now, sequence.cached_tokens or 0
                stepped.first.append(job)
            if sequence.generated == job.answer:
                self._scheduler.remove(sequence)
                del self._jobs[sequence]
                stepped.ended.append(job)
        self._begin(now)
        return stepped

    def jobs(self) -> list[Job]:
        """All that is unfinished."""
        return [*self._jobs.values()]

    def _begin(self, now: float) -> None:
        self.version += 1
        self._works = self._scheduler.schedule()
        if not self._works:
            self.until = None
            return
        prompts = sum(work.count for work in self._works if not work.sequence.generated)
        cached = sum(work.start for work in self._works if work.sequence.generated)
        self.until = now + self.speed.of(len(self._works), cached, prompts, now)
