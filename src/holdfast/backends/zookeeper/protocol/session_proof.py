"""Until when the ensemble is proven to keep a session: what a client can know of the leader's timer for it.

Only the leader's timer ends a session. A follower answers pings and reads by itself, so they prove nothing. A single
committed write proves nothing either: a follower forwards it, and the leader does not reset the session's timer for it.
The leader resets the timer only

    1. when the session is opened or reconnects: the server asks the leader before it answers;
    2. when a follower reports the sessions that were active, in its answer to the leader's ping, which the leader sends
       twice in a tickTime. (For a client of the leader itself every request resets the timer, which is only earlier.)

The client can observe 2. because messages between leader and follower stay in order in both directions. Let A, B and C
be writes on one connection, each sent after the answer to the previous one, and B at least a gap after A's answer:

    A answered      the follower has seen the session active since A was sent, and reports that with its next answer
                    to a ping
    B answered      the commit of B followed a ping that the leader sent in the gap: the follower has answered that ping
    C answered      C reached the leader after that answer, which the leader has read: it reset the timer after A was
                    sent

So if C was answered, the session lives until `A sent + timeout`; expiry is rounded up to a tick, never down. B and C
are sent in pairs, and the C of one pair is the A of a later one. A new leader resets all timers, which only extends the
session. Without A, B, C (with a deadline counted from the last write), a holder whose follower is cut off in the wrong
half second would rely on its lease for up to a third of the timeout longer than the leader does;
tests/integration/zookeeper shows that.
"""

from __future__ import annotations

from collections import deque

from holdfast.core.clock import lease_deadline

# The gap: seconds in which the leader sends at least one ping, which it does every half tickTime. By default servers
# grant no timeout below two tickTimes, so half a tickTime is at most a quarter of the timeout. A tickTime of 8 s or
# more is not used in practice.
GAP_MAX = 4.0
GAP_SHARE = 0.3
PAIRS = 6  # at least, in one timeout: without faults, at least half of the timeout is then left at any time


class SessionProof:
    """The proof that one session lives."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.pause = timeout / PAIRS
        self._gap = min(GAP_MAX, timeout * GAP_SHARE)
        self._timer_started = float("-inf")  # the leader reset its timer after this moment
        self.next_proof = 0.0  # a pair of writes that begins then, or later, proves more
        self._connection = 0
        self._writes: deque[tuple[float, float]] = deque()  # writes that may serve as A: when sent, when answered

    @property
    def valid_until(self) -> float:
        """The session lives until then, by the local clock."""
        return lease_deadline(self._timer_started, self.timeout, 0.0)

    def next_proof_after(self, now: float) -> float:
        """When the next proof is expected: by the pair that is on its way, or by a later one."""
        if self.next_proof > now:
            return self.next_proof
        # Overdue pairs mean that the process was paused: they prove only what was true before the pause.
        return now if now - self.next_proof < self.pause / 2 else now + self._gap

    def record_connection(self, connection: int, sent: float) -> None:
        """The session was opened or reconnected on this connection, by a request that was sent at `sent`."""
        if connection > self._connection:
            self._connection = connection
            self._writes.clear()  # the previous server may not have reported them
            self._timer_started = max(self._timer_started, sent)
            self.next_proof = sent + self._gap

    def record_pair(self, connection: int, first_sent: float, second_sent: float, second_answered: float) -> None:
        """Two writes were answered on this connection, one after the other."""
        if connection != self._connection:
            return
        while self._writes and self._writes[0][1] + self._gap <= first_sent:
            self._timer_started = max(self._timer_started, self._writes.popleft()[0])
        self._writes.append((second_sent, second_answered))
        self.next_proof = self._writes[0][1] + self._gap
