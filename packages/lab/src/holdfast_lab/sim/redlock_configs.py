"""An exhaustive search of the fences in small Redlock configurations: three nodes, two clients, and no reliable clock.

The clients run the shipped protocol, the nodes the shipped scripts (`fence_model.py`). A request arrives at any later
time, in any order, or never, also after its client has given up. A reply is received or lost. An acquire may arrive
twice. A vote expires at any time. A node loses all data and restarts with a clock that has advanced. In every order,
two grants never have the same fence, and a grant before the start of another attempt has the smaller one.

A release is not a step of its own: the search checks that it does nothing but end a vote, which is a step already.

States are enumerated breadth first, each once. Exchanging two nodes makes no new state. For speed everything has a
number: a node with its messages and views is a *column*, the rest of the state is its *head*.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from holdfast.backends.redis.port import Call
from holdfast.backends.redlock import lua
from holdfast_lab.sim.fence_model import KEYS, LOST, FenceModel, Node, Reply, TicketAttempt, nonce_of
from holdfast_lab.sim.run import quiet

if TYPE_CHECKING:
    from holdfast_lab.sim.run import Plan

T = TypeVar("T")

FORWARD = 1_000  # microseconds that a node's clock advances in a restart: far more than the counts
OPEN, NOT_REQUESTED = "open", "-"
NAMES = "AB"
CHECK_EVERY = 2000  # states between two checks of the time limit


class Size(NamedTuple):
    """The limits of a search."""

    attempts: Sequence[int] = (1, 1)  # of each client; after a failed one with the same ticket
    resent: int = 0  # acquires that arrive twice in one history
    amnesia: int = 0  # nodes that lose their data in one history
    clocks: Sequence[Sequence[int]] = (
        (1, 1, 1),
    )  # start values of the nodes' clocks in microseconds: one search for each
    states_max: int = 10_000_000
    seconds_max: float = 600.0


# Each one adds one kind of event to the first. All together would take hours.
SIZES = (
    Size(clocks=((1, 1, 1), (1, 1, 3), (1, 2, 3))),
    Size(amnesia=1),
    Size(resent=1),
    Size(attempts=(2, 1)),
)


class Search(NamedTuple):
    """The result of a search."""

    states: int
    steps: int  # from one state to another
    grants: int  # steps that granted a lease
    is_complete: bool
    broken: str | None = None  # a sentence
    path: Sequence[str] = ()  # the steps of the shortest path to the broken state


Progress = Callable[[int, int], bool]  # called with the states found and left; returns whether to continue


def search_fences(plan: Plan, size: Size, *, progress: Progress | None = None) -> Search:
    """Search every state of this size, until one breaks the order of fences."""
    with quiet():
        return _Searching(plan, size).result(progress)


class Message(NamedTuple):
    """A request that has not arrived at its node."""

    client: int
    ticket: int
    attempt: int
    round_number: int  # of the round in its attempt
    call: int  # number of the call
    server_run: int  # of the node, as the client knew it


class Column(NamedTuple):
    """One node, the messages to it, and the view of each client: its run and its replies."""

    node: Node
    messages: tuple[Message, ...]
    views: tuple[tuple[Any, ...], ...]  # by client: () without an attempt, otherwise (ticket, attempt, run, reply, …)


_REPLIES = 3  # index of the first reply in a view


class Client(NamedTuple):
    """The state of a client."""

    ticket: int
    attempt: int
    attempts_left: int
    is_acquiring: bool
    floor: int  # the greatest fence granted before this attempt began


class Head(NamedTuple):
    """The state that belongs to no single node."""

    clients: tuple[Client, ...]
    fences: tuple[int, ...]  # granted so far, in order
    resent: int  # how many are left
    amnesia: int


State: TypeAlias = tuple[int, ...]  # the numbers of its columns, in order, and of its head
Step: TypeAlias = tuple[State, tuple[Any, ...]]  # the next state, and the event for `_label`


class Numbers(Generic[T]):
    """Numbers for values."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def of(self, value: T) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number


class _Broken(Exception):
    """Two fences are not in order."""


class _Arrival(NamedTuple):
    """An arriving message, and the column after it; -1: impossible or without effect."""

    message: Message
    reply: Reply
    unanswered: int
    unanswered_again: int  # and the message arrives again later
    received: int
    received_again: int


class _ColumnSteps(NamedTuple):
    """The possible steps of a column."""

    ended: int  # the same without its vote; -1: it has no vote
    arrivals: list[_Arrival]


class _View(NamedTuple):
    """A column as one client sees it."""

    is_open: bool  # a reply is missing
    given_up: int  # the same after the client stops waiting
    transcript: int  # number of its replies then


class _HeadSteps(NamedTuple):
    """The possible steps of a head."""

    clients: tuple[Client, ...]
    is_over: bool  # no more grants are possible
    resent: int  # the head after an acquire arrived twice; -1: none may
    forgets: int  # the head after a node lost its data; -1: none may


class _Continuation(NamedTuple):
    """How an attempt continues when its client stops waiting."""

    head: int
    is_grant: bool
    calls: Sequence[int] | None  # its next requests by column, -1 for none; None: it has ended


class _Searching:
    def __init__(self, plan: Plan, size: Size) -> None:
        server = plan.server_type
        self._size = size
        # A plan may have any server; this search is only used with Redlock's, which has both attributes.
        self._model = FenceModel(server.backend, server.texts, len(size.clocks[0]))  # type: ignore[attr-defined]
        self._columns: Numbers[Column] = Numbers()
        self._heads: Numbers[Head] = Numbers()
        self._calls: Numbers[Call] = Numbers()
        self._transcripts: Numbers[tuple[int, tuple[Reply, ...]]] = Numbers()  # a node's run, and its replies
        self._column_steps: dict[int, _ColumnSteps] = {}
        self._head_steps: dict[int, _HeadSteps] = {}
        self._forgotten: dict[int, int] = {}
        self._views: list[dict[int, _View]] = [{} for _ in size.attempts]  # by client: column -> its view
        # client, head, transcripts by node -> how the client continues; None: no other client notices a difference
        self._continuations: dict[tuple[int, ...], _Continuation | None] = {}
        self._requested: dict[tuple[int, int, int], int] = {}  # column, client, call or -1 -> …
        self._over: dict[tuple[int, int], int] = {}  # column, client -> the same after its attempt
        self._current_step: tuple[Any, ...] = ()  # the step that is being computed
        self._grants = 0

    def result(self, progress: Progress | None) -> Search:
        size = self._size
        ends = time.monotonic() + size.seconds_max
        parents: dict[State, State | None] = {self._start(clocks): None for clocks in size.clocks}
        order = list(parents)
        steps = 0
        for done, state in enumerate(order):  # the list grows during the loop
            if done % CHECK_EVERY == CHECK_EVERY - 1:
                is_over = time.monotonic() > ends or len(order) > size.states_max
                if is_over or (progress is not None and not progress(len(order), len(order) - done)):
                    return Search(len(order), steps, self._grants, is_complete=False)
            try:
                for after, _ in self._steps(state):
                    steps += 1
                    if after not in parents:
                        parents[after] = state
                        order.append(after)
            except _Broken as broken:
                last = self._current_step
                path = [*self._path(parents, state), self._label(state, state, last), str(broken)]
                return Search(len(order), steps, self._grants, is_complete=False, broken=path[-1], path=path)
        return Search(len(order), steps, self._grants, is_complete=True)

    def _start(self, clocks: Sequence[int]) -> State:
        size = self._size
        no_views = tuple(() for _ in size.attempts)
        columns = [self._columns.of(Column(Node(None, None, None, 0, clock), (), no_views)) for clock in clocks]
        clients = tuple(Client(0, 1, left, is_acquiring=False, floor=0) for left in size.attempts)
        return (*sorted(columns), self._heads.of(Head(clients, (), size.resent, size.amnesia)))

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _steps(self, state: State) -> Iterator[Step]:
        *columns, head = state
        clients, is_over, resent, forgets = self._head_steps.get(head) or self._steps_of_head(head)
        if is_over:
            return
        before = -1
        for index, column in enumerate(columns):
            if column == before:
                continue  # equal columns have equal steps
            before = column
            ended, arrivals = self._column_steps.get(column) or self._steps_of_column(column)
            if ended >= 0:
                yield _put(columns, index, ended, head), ("ends", column)
            if forgets >= 0:
                yield _put(columns, index, self._forget(column), forgets), ("forgets", column)
            for arrival in arrivals:
                message, _, unanswered, unanswered_again, received, received_again = arrival
                if unanswered >= 0:
                    yield _put(columns, index, unanswered, head), ("unanswered", arrival)
                    if resent >= 0 and unanswered_again >= 0:
                        yield _put(columns, index, unanswered_again, resent), ("unanswered, and again", arrival)
                if received >= 0:
                    self._current_step = ("received", arrival)
                    after = self._receive(_put(columns, index, received, head), message.client)
                    if after:
                        yield after, ("received", arrival)
                    if resent >= 0 and received_again >= 0:
                        after = self._receive(_put(columns, index, received_again, resent), message.client)
                        if after:
                            yield after, ("received, and again", arrival)
        for number, client in enumerate(clients):
            if client.is_acquiring:
                self._current_step = ("gives up", number)
                after = self._continue(state, number)
                if after:
                    yield after, ("gives up", number)
            elif client.attempts_left:
                yield self._begin(state, number), ("begins", number)

    def _receive(self, state: State, number: int) -> State:
        """After the last reply the client continues at once; before that it may still wait."""
        views = self._views[number]
        for column in state[:-1]:
            if (views.get(column) or self._view(column, number)).is_open:
                return state
        return self._continue(state, number)

    def _begin(self, state: State, number: int) -> State:
        *columns, head_number = state
        head = self._heads.values[head_number]
        client = head.clients[number]
        client = client._replace(
            is_acquiring=True, attempts_left=client.attempts_left - 1, floor=max(head.fences, default=0)
        )
        columns_after = []
        for column in columns:
            whole = self._columns.values[column]
            view = (client.ticket, client.attempt, whole.node.server_run)
            columns_after.append(self._columns.of(whole._replace(views=_set(whole.views, number, view))))
        head = head._replace(clients=_set(head.clients, number, client))
        return self._continue((*columns_after, self._heads.of(head)), number)

    def _continue(self, state: State, number: int) -> State:
        """The client stops waiting: missing replies count as lost."""
        *columns, head = state
        views = self._views[number]
        columns_after, transcripts = [], []
        for column in columns:
            _, given_up, transcript = views.get(column) or self._view(column, number)
            columns_after.append(given_up)
            transcripts.append(transcript)
        key = (number, head, *transcripts)
        try:
            continuation = self._continuations[key]
        except KeyError:
            continuation = self._continuations[key] = self._continuation(number, head, transcripts)
        if continuation is None:
            return ()
        if continuation.calls is None:
            self._grants += continuation.is_grant
            columns_after = [self._end_attempt(column, number) for column in columns_after]
        else:
            calls = zip(columns_after, continuation.calls, strict=True)
            columns_after = [self._request(column, number, call) for column, call in calls]
        columns_after.sort()
        return (*columns_after, continuation.head)

    def _continuation(self, number: int, head_number: int, transcripts: Sequence[int]) -> _Continuation | None:
        head = self._heads.values[head_number]
        client = head.clients[number]
        received = [self._transcripts.values[transcript] for transcript in transcripts]
        attempt = TicketAttempt(number, client.ticket, client.attempt, tuple(server_run for server_run, _ in received))
        following = self._model.follow(attempt, tuple(replies for _, replies in received))
        if following is None and not client.attempts_left:
            return None  # for all other clients this is the same as if the client continued to wait
        if not (following is None or isinstance(following, int)):
            calls = [self._calls.of(following[index]) if index in following else -1 for index in range(len(received))]
            return _Continuation(head_number, is_grant=False, calls=calls)
        fences, after = head.fences, client._replace(is_acquiring=False, floor=0)
        if following is None:
            after = after._replace(attempt=client.attempt + 1)
        else:
            _check_order(head, number, following)
            fences = tuple(sorted((*fences, following)))
            after = after._replace(ticket=client.ticket + 1, attempt=1)
        head = head._replace(clients=_set(head.clients, number, after), fences=fences)
        return _Continuation(self._heads.of(head), is_grant=following is not None, calls=None)

    # ── changes of a head or a column, computed once ─────────────────────────────────────────────────────────────

    def _steps_of_head(self, number: int) -> _HeadSteps:
        head = self._heads.values[number]
        steps = self._head_steps[number] = _HeadSteps(
            head.clients,
            is_over=not any(client.is_acquiring or client.attempts_left for client in head.clients),
            resent=self._heads.of(head._replace(resent=head.resent - 1)) if head.resent else -1,
            forgets=self._heads.of(head._replace(amnesia=head.amnesia - 1)) if head.amnesia else -1,
        )
        return steps

    def _steps_of_column(self, number: int) -> _ColumnSteps:
        column = self._columns.values[number]
        without_vote = column._replace(node=column.node._replace(vote=None))
        steps = self._column_steps[number] = _ColumnSteps(
            ended=-1 if column.node.vote is None else self._columns.of(without_vote),
            arrivals=[self._arrival(column, message) for message in dict.fromkeys(column.messages)],
        )
        return steps

    def _forget(self, number: int) -> int:
        if number not in self._forgotten:
            column = self._columns.values[number]
            node = Node(None, None, None, column.node.server_run + 1, column.node.clock + FORWARD)
            self._forgotten[number] = self._columns.of(column._replace(node=node))
        return self._forgotten[number]

    def _arrival(self, column: Column, message: Message) -> _Arrival:
        call = self._calls.values[message.call]
        node, reply = self._model.answer(column.node, call)
        rest = list(column.messages)
        rest.remove(message)
        again = column._replace(node=node)
        once = again._replace(messages=tuple(rest))
        view = column.views[message.client]
        # Port and protocol discard the reply of another run than the one that the request was for.
        is_awaited = view == (message.ticket, message.attempt, column.node.server_run, *view[_REPLIES:-1], OPEN) and (
            len(view) == _REPLIES + message.round_number + 1
        )
        views = _set(column.views, message.client, (*view[:-1], reply))
        can_repeat = self._size.resent > 0 and call.script is lua.ACQUIRE
        of = self._columns.of
        return _Arrival(
            message,
            reply,
            # A message without effect whose reply is lost is the same as a lost message.
            unanswered=of(once) if node != column.node else -1,
            unanswered_again=of(again) if node != column.node and can_repeat else -1,
            received=of(once._replace(views=views)) if is_awaited else -1,
            received_again=of(again._replace(views=views)) if is_awaited and can_repeat else -1,
        )

    def _view(self, number: int, client: int) -> _View:
        column = self._columns.values[number]
        ticket, attempt, server_run, *replies = column.views[client]
        is_open = bool(replies) and replies[-1] == OPEN
        given_up = number
        if is_open:
            replies[-1] = LOST
            views = _set(column.views, client, (ticket, attempt, server_run, *replies))
            given_up = self._columns.of(column._replace(views=views))
        transcript = self._transcripts.of((server_run, tuple(replies)))
        view = self._views[client][number] = _View(is_open, given_up, transcript)
        return view

    def _request(self, number: int, client: int, call: int) -> int:
        key = (number, client, call)
        if key not in self._requested:
            column = self._columns.values[number]
            view = column.views[client]
            messages = column.messages
            if call >= 0:
                ticket, attempt, server_run, *replies = view
                messages = tuple(sorted((*messages, Message(client, ticket, attempt, len(replies), call, server_run))))
            views = _set(column.views, client, (*view, OPEN if call >= 0 else NOT_REQUESTED))
            self._requested[key] = self._columns.of(column._replace(messages=messages, views=views))
        return self._requested[key]

    def _end_attempt(self, number: int, client: int) -> int:
        key = (number, client)
        if key not in self._over:
            column = self._columns.values[number]
            self._check_release(column, client)
            self._over[key] = self._columns.of(column._replace(views=_set(column.views, client, ())))
        return self._over[key]

    def _check_release(self, column: Column, client: int) -> None:
        """Check that a release does nothing but end a vote."""
        ticket, attempt, *_ = column.views[client]
        for is_over in (0, 1):
            call = Call(lua.RELEASE, KEYS, (nonce_of(client, ticket), attempt, is_over))
            after, _ = self._model.answer(column.node, call)
            if after not in (column.node, column.node._replace(vote=None)):
                raise AssertionError(f"a release does more than end a vote: {column.node} -> {after}")

    # ── output ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _path(self, parents: Mapping[State, State | None], last: State) -> list[str]:
        states = [last]
        while (before := parents[states[-1]]) is not None:
            states.append(before)
        path = []
        for before, after in itertools.pairwise(reversed(states)):
            step = next(step for result, step in self._steps(before) if result == after)
            path.append(self._label(before, after, step))
        return path

    def _label(self, before: State, after: State, step: tuple[Any, ...]) -> str:
        kind, about = step
        then = self._heads.values[after[-1]]
        outcomes = [
            f"; {NAMES[number]} {_outcome(then, self._heads.values[before[-1]])}"
            for number, client in enumerate(then.clients)
            if self._heads.values[before[-1]].clients[number].is_acquiring and not client.is_acquiring
        ]
        if kind in ("gives up", "begins"):
            text = f"{NAMES[about]} {'receives no more replies' if kind == 'gives up' else 'begins an attempt'}"
        elif kind in ("ends", "forgets"):
            node = self._columns.values[about].node
            text = (
                f"a node loses its data (its count was {node.counted})"
                if kind == "forgets"
                else f"{NAMES[node.vote.client if node.vote else 0]}'s vote ends on a node with count {node.counted}"
            )
        else:
            message = about.message
            verb = self._calls.values[message.call].script.name.rpartition("/")[2]
            text = f"{verb} of {NAMES[message.client]}'s attempt {message.attempt} arrives: {about.reply}, {kind}"
        return text + "".join(outcomes)


def _check_order(head: Head, number: int, fence: int) -> None:
    floor = head.clients[number].floor
    if fence in head.fences:
        raise _Broken(f"{NAMES[number]} is granted {fence}, which was granted before")
    if fence < floor:
        raise _Broken(f"{NAMES[number]} is granted {fence}, although {floor} was granted before it began")


def _outcome(after: Head, before: Head) -> str:
    new = set(after.fences) - set(before.fences)
    return f"is granted {new.pop()}" if new else "fails"


def _put(columns: Sequence[int], index: int, column: int, head: int) -> State:
    changed = [*columns]
    changed[index] = column
    changed.sort()
    return (*changed, head)


def _set(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])
