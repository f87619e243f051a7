"""Until when the ensemble certainly keeps our session: what is known of the one timer that counts, the leader's.

A follower answers pings and reads by itself, so they prove nothing. Neither does a single write, committed as it is: a
follower hands it on, and the leader does not look at the session's timer for it. The timer is started anew only

    1. when the session is opened, or reconnects: the server asks the leader before it answers;
    2. when the follower tells the leader which sessions it has heard from, in its answer to the leader's ping, which
       comes twice in a tickTime. (On the leader itself every request starts it anew, which is only sooner.)

What makes 2. visible from here is that both directions between leader and follower are in order. Let A, B and C be
writes on one connection, each sent after the one before was answered, and B at least APART after A's answer:

    A answered      the follower has heard from us since A was sent, and will say so in its next answer to a ping
    B answered      the commit of B came behind a ping that the leader sent meanwhile: the follower has answered that
    C answered      C went to the leader behind that answer, which it has read: its timer started after A was sent

So the session lives until `A sent + timeout`, if C was answered; expiry is rounded up to a tick, never down. B and C
are sent in pairs, and the C of one pair is the A of a later one. A new leader starts all timers anew, which is only
later. Without A, B, C (a deadline counted from the last write) a holder whose follower is cut off in the wrong half
second believes for up to a third of the timeout longer than the leader does; tests/integration/zookeeper shows it.
"""

from __future__ import annotations

from collections import deque

from holdfast.core.clock import lease_deadline

# Seconds within which the leader has certainly sent a ping: it does so every half tickTime. The least timeout that
# servers grant is two tickTimes unless they were told otherwise, so that is a quarter of the timeout at most; and
# nobody has a tickTime of 8 s.
GAP_MAX = 4.0
GAP_SHARE = 0.3
PAIRS = 6  # in one timeout, at least: then half of the timeout or more is left at any time, while all goes well


class SessionProof:
    """What is proven of one session."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.pause = timeout / PAIRS
        self._gap = min(GAP_MAX, timeout * GAP_SHARE)
        self._timer_started = float("-inf")  # the timer was started after this moment
        self.next_proof = 0.0  # a pair of writes that begins then, or later, proves more
        self._connection = 0
        self._writes: deque[tuple[float, float]] = deque()  # writes that may serve as A: when sent, when answered

    @property
    def valid_until(self) -> float:
        """The session lives until then, by our clock."""
        return lease_deadline(self._timer_started, self.timeout, 0.0)

    def next_proof_after(self, now: float) -> float:
        """When more is expected to be proven: by the pair that is on its way, or else by a later one."""
        if self.next_proof > now:
            return self.next_proof
        # Overdue pairs mean that the process was paused: what they prove may be as old as the pause.
        return now if now - self.next_proof < self.pause / 2 else now + self._gap

    def record_connection(self, connection: int, sent: float) -> None:
        """The session was opened, or found again, on this connection by a request sent then."""
        if connection > self._connection:
            self._connection = connection
            self._writes.clear()  # what another server has heard it may not have told
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
