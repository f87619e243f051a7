"""All that can happen to the fences of a small council: three nodes, two clients, and no clock that anybody relies on.

The clients run the shipped protocol, the nodes the shipped scripts (`ballots.py`). What is asked of a node arrives at
any later moment, in any order, or never, also after its client has given up on it; an answer is heard or lost; an
acquire may arrive once more; a vote ends at any moment; a node forgets everything, and comes back with a clock that has
gone on. Whatever the order, two grants never have the same fence, and one that comes before the beginning of another
attempt has the smaller one.

A release is no step of its own: all that it does to a node, as is checked every time, the end of a vote does too.

States are enumerated breadth first, each once; nodes that change places make no new state. For speed everything has a
number: a node with all that concerns it is a *column*, the rest of the state is its *head*.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from holdfast.backends.redis.port import Call
from holdfast.backends.redlock import lua
from holdfast.sim.fence_model import KEYS, LOST, Answer, Attempt, Ballots, Next, Node, nonce_of
from holdfast.sim.run import quiet

if TYPE_CHECKING:
    from holdfast.sim.run import Plan

T = TypeVar("T")

FORWARD = 1_000  # microseconds by which the clock of a node has gone on when it comes back: far more than are counted
OPEN, NOT_ASKED = "open", "-"
NAMES = "AB"
LOOK_EVERY = 2000  # states, at the clock


class Size(NamedTuple):
    """How much may happen."""

    attempts: Sequence[int] = (1, 1)  # of each client: after one that failed, of the same ticket
    resent: int = 0  # acquires that arrive twice, in one history
    amnesia: int = 0  # nodes that forget, in one history
    clocks: Sequence[Sequence[int]] = ((1, 1, 1),)  # of the nodes when they begin, in microseconds: each of these
    states_max: int = 10_000_000
    seconds_max: float = 600.0


# Each adds one thing to the first. All at once would take hours.
SIZES = (
    Size(clocks=((1, 1, 1), (1, 1, 3), (1, 2, 3))),
    Size(amnesia=1),
    Size(resent=1),
    Size(attempts=(2, 1)),
)


class Search(NamedTuple):
    """What came of it."""

    states: int
    steps: int  # from one state to another
    grants: int  # steps with which an attempt ended well
    is_complete: bool
    broken: str | None = None  # in a sentence
    story: Sequence[str] = ()  # the shortest way there


Progress = Callable[[int, int], bool]  # told of states and how many are still to be followed, says whether to go on


def search_fences(plan: Plan, size: Size, *, progress: Progress | None = None) -> Search:
    """Every state of a council of this size, until one breaks the order of fences."""
    with quiet():
        return _Searching(plan, size).result(progress)


class Message(NamedTuple):
    """Something that was asked of a node and has not arrived."""

    client: int
    ticket: int
    attempt: int
    ask: int  # the so-manieth of its attempt
    call: int  # its number
    server_run: int  # of the node, as the client knew it


class Column(NamedTuple):
    """One node, what is on its way to it, and how each client knows it and what it has heard."""

    node: Node
    messages: tuple[Message, ...]
    views: tuple[tuple[Any, ...], ...]  # by client: () if it asks nobody, else (ticket, attempt, life, answer, …)


_ANSWERS = 3  # where they begin in a view


class Client(NamedTuple):
    """Where a client is."""

    ticket: int
    attempt: int
    left: int  # attempts
    is_asking: bool
    floor: int  # the greatest fence that anybody had been granted when this attempt began


class Head(NamedTuple):
    """What concerns no node alone."""

    clients: tuple[Client, ...]
    fences: tuple[int, ...]  # granted so far, in order
    resent: int  # how many more
    amnesia: int


State: TypeAlias = tuple[int, ...]  # the numbers of its columns, in order, and of its head
Step: TypeAlias = tuple[State, tuple[Any, ...]]  # where it leads, and what it was, for `_label`


class Numbers(Generic[T]):
    """Each thing has one."""

    def __init__(self) -> None:
        self.things: list[T] = []
        self._numbers: dict[T, int] = {}

    def of(self, thing: T) -> int:
        number = self._numbers.get(thing)
        if number is None:
            number = self._numbers[thing] = len(self.things)
            self.things.append(thing)
        return number


class _Broken(Exception):
    """Two fences are not in order."""


class _Arrival(NamedTuple):
    """A message that arrives, and what the column is then; -1: that cannot be, or makes no difference."""

    message: Message
    reply: Answer
    unanswered: int
    unanswered_again: int  # with the message on its way once more
    heard: int
    heard_again: int


class _Searching:
    def __init__(self, plan: Plan, size: Size) -> None:
        server = plan.server_type
        self._size = size
        # A plan names any server; this search is only begun with Redlock's, which has both.
        self._ballots = Ballots(server.backend, server.texts, len(size.clocks[0]))  # type: ignore[attr-defined]
        self._columns: Numbers[Column] = Numbers()
        self._heads: Numbers[Head] = Numbers()
        self._calls: Numbers[Call] = Numbers()
        self._tales: Numbers[tuple[int, tuple[Answer, ...]]] = Numbers()  # a node's life, and its answers
        self._arrivals_at: dict[int, list[_Arrival]] = {}
        self._ended: dict[int, int] = {}  # column -> the same without its vote; -1: it has none
        self._forgotten: dict[int, int] = {}
        self._heard_of: dict[tuple[int, int], int] = {}  # column, client -> the tale
        self._followed: dict[tuple[int, ...], Next] = {}  # client, ticket, attempt, tales in the order of nodes -> …
        self._given_up: dict[tuple[int, int], int] = {}  # column, client -> the same with nothing more to be heard
        self._asked: dict[tuple[int, int, int], int] = {}  # column, client, call or -1 -> …
        self._over: dict[tuple[int, int], int] = {}  # column, client -> the same when its attempt is over
        self._doing: tuple[Any, ...] = ()  # the step that is being worked out
        self._grants = 0

    def result(self, progress: Progress | None) -> Search:
        size = self._size
        ends = time.monotonic() + size.seconds_max
        parents: dict[State, State | None] = {self._beginning(clocks): None for clocks in size.clocks}
        order = list(parents)
        steps = 0
        for done, state in enumerate(order):  # which grows meanwhile
            if done % LOOK_EVERY == LOOK_EVERY - 1:
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
                last = self._doing
                story = [*self._story(parents, state), self._label(state, state, last), str(broken)]
                return Search(len(order), steps, self._grants, is_complete=False, broken=story[-1], story=story)
        return Search(len(order), steps, self._grants, is_complete=True)

    def _beginning(self, clocks: Sequence[int]) -> State:
        size = self._size
        nobody = tuple(() for _ in size.attempts)
        columns = [self._columns.of(Column(Node(None, None, None, 0, clock), (), nobody)) for clock in clocks]
        clients = tuple(Client(0, 1, left, is_asking=False, floor=0) for left in size.attempts)
        return (*sorted(columns), self._heads.of(Head(clients, (), size.resent, size.amnesia)))

    # ── what can happen next ─────────────────────────────────────────────────────────────────────────────────────

    def _steps(self, state: State) -> Iterator[Step]:
        *columns, head_number = state
        head = self._heads.things[head_number]
        if not any(client.is_asking or client.left for client in head.clients):
            return  # nobody will be granted anything any more
        resent = self._heads.of(head._replace(resent=head.resent - 1)) if head.resent else -1
        for place, column in enumerate(columns):
            if place and column == columns[place - 1]:
                continue  # what happens to one of two that are the same has happened to the other
            ended = self._end_vote(column)
            if ended >= 0:
                yield _put(columns, place, ended, head_number), ("ends", column)
            if head.amnesia:
                forgets = self._heads.of(head._replace(amnesia=head.amnesia - 1))
                yield _put(columns, place, self._forget(column), forgets), ("forgets", column)
            for arrival in self._arrivals(column):
                if arrival.unanswered >= 0:
                    yield _put(columns, place, arrival.unanswered, head_number), ("unanswered", arrival)
                    if resent >= 0 and arrival.unanswered_again >= 0:
                        yield _put(columns, place, arrival.unanswered_again, resent), ("unanswered, and again", arrival)
                self._doing = ("heard", arrival)
                if arrival.heard >= 0:
                    after = self._hear(_put(columns, place, arrival.heard, head_number), arrival.message.client)
                    if after:
                        yield after, ("heard", arrival)
                    if resent >= 0 and arrival.heard_again >= 0:
                        again = _put(columns, place, arrival.heard_again, resent)
                        after = self._hear(again, arrival.message.client)
                        if after:
                            yield after, ("heard, and again", arrival)
        for number, client in enumerate(head.clients):
            self._doing = ("gives up", number)
            if client.is_asking:
                after = self._go_on(state, number)
                if after:
                    yield after, ("gives up", number)
            elif client.left:
                yield self._begin(state, number), ("begins", number)

    def _hear(self, state: State, number: int) -> State:
        """With the last answer the client goes on at once; before, it may still wait."""
        things = self._columns.things
        if any(things[column].views[number][-1] == OPEN for column in state[:-1]):
            return state
        return self._go_on(state, number)

    def _begin(self, state: State, number: int) -> State:
        *columns, head_number = state
        head = self._heads.things[head_number]
        client = head.clients[number]
        client = client._replace(is_asking=True, left=client.left - 1, floor=max(head.fences, default=0))
        lives = [self._columns.things[column].node.server_run for column in columns]
        met = []
        for column, server_run in zip(columns, lives, strict=True):
            whole = self._columns.things[column]
            view = (client.ticket, client.attempt, server_run)
            met.append(self._columns.of(whole._replace(views=_set(whole.views, number, view))))
        head = head._replace(clients=_set(head.clients, number, client))
        return self._follow(met, head, number)

    def _go_on(self, state: State, number: int) -> State:
        """The client has waited long enough: what was not answered is lost to it."""
        *columns, head_number = state
        return self._follow(
            [self._give_up(column, number) for column in columns], self._heads.things[head_number], number
        )

    def _follow(self, columns: Sequence[int], head: Head, number: int) -> State:
        client = head.clients[number]
        following = self._following(columns, client, number)
        if following is None and not client.left:
            return ()  # for all others this is as if it went on waiting
        if not (following is None or isinstance(following, int)):
            calls = [self._calls.of(following[place]) if place in following else -1 for place in range(len(columns))]
            asked = [self._ask(column, number, call) for column, call in zip(columns, calls, strict=True)]
            return (*sorted(asked), self._heads.of(head))
        fences, after = head.fences, client._replace(is_asking=False, floor=0)
        if following is None:
            after = after._replace(attempt=client.attempt + 1)
        else:
            self._grants += 1
            _judge(head, number, following)
            fences = tuple(sorted((*fences, following)))
            after = after._replace(ticket=client.ticket + 1, attempt=1)
        over = [self._end_attempt(column, number) for column in columns]
        head = head._replace(clients=_set(head.clients, number, after), fences=fences)
        return (*sorted(over), self._heads.of(head))

    def _following(self, columns: Sequence[int], client: Client, number: int) -> Next:
        """What the attempt does after all that it has heard. Numbers stand for that: most of it was heard before."""
        key = (number, client.ticket, client.attempt, *[self._heard(column, number) for column in columns])
        if key not in self._followed:
            heard = [self._tales.things[tale] for tale in key[3:]]
            attempt = Attempt(number, client.ticket, client.attempt, tuple(server_run for server_run, _ in heard))
            self._followed[key] = self._ballots.follow(attempt, tuple(answers for _, answers in heard))
        return self._followed[key]

    # ── what becomes of a column, worked out once ────────────────────────────────────────────────────────────────

    def _end_vote(self, number: int) -> int:
        if number not in self._ended:
            column = self._columns.things[number]
            is_free = column.node.vote is None
            without = column._replace(node=column.node._replace(vote=None))
            self._ended[number] = -1 if is_free else self._columns.of(without)
        return self._ended[number]

    def _forget(self, number: int) -> int:
        if number not in self._forgotten:
            column = self._columns.things[number]
            node = Node(None, None, None, column.node.server_run + 1, column.node.clock + FORWARD)
            self._forgotten[number] = self._columns.of(column._replace(node=node))
        return self._forgotten[number]

    def _arrivals(self, number: int) -> list[_Arrival]:
        if number not in self._arrivals_at:
            column = self._columns.things[number]
            messages = dict.fromkeys(column.messages)
            self._arrivals_at[number] = [self._arrival(column, message) for message in messages]
        return self._arrivals_at[number]

    def _arrival(self, column: Column, message: Message) -> _Arrival:
        call = self._calls.things[message.call]
        node, reply = self._ballots.answer(column.node, call)
        rest = list(column.messages)
        rest.remove(message)
        again = column._replace(node=node)
        once = again._replace(messages=tuple(rest))
        view = column.views[message.client]
        # Another process than the one that was asked is not believed: port and protocol see to that.
        is_awaited = view == (message.ticket, message.attempt, column.node.server_run, *view[_ANSWERS:-1], OPEN) and (
            len(view) == _ANSWERS + message.ask + 1
        )
        views = _set(column.views, message.client, (*view[:-1], reply))
        can_repeat = self._size.resent > 0 and call.script is lua.ACQUIRE
        of = self._columns.of
        return _Arrival(
            message,
            reply,
            # What changes nothing and is not heard of might as well never have come.
            unanswered=of(once) if node != column.node else -1,
            unanswered_again=of(again) if node != column.node and can_repeat else -1,
            heard=of(once._replace(views=views)) if is_awaited else -1,
            heard_again=of(again._replace(views=views)) if is_awaited and can_repeat else -1,
        )

    def _give_up(self, number: int, client: int) -> int:
        key = (number, client)
        if key not in self._given_up:
            column = self._columns.things[number]
            view = column.views[client]
            closed = (*view[:-1], LOST) if view[-1] == OPEN else view
            self._given_up[key] = self._columns.of(column._replace(views=_set(column.views, client, closed)))
        return self._given_up[key]

    def _heard(self, number: int, client: int) -> int:
        """The number of what a client has heard of this node."""
        key = (number, client)
        if key not in self._heard_of:
            _, _, server_run, *answers = self._columns.things[number].views[client]
            self._heard_of[key] = self._tales.of((server_run, tuple(answers)))
        return self._heard_of[key]

    def _ask(self, number: int, client: int, call: int) -> int:
        key = (number, client, call)
        if key not in self._asked:
            column = self._columns.things[number]
            view = column.views[client]
            messages = column.messages
            if call >= 0:
                ticket, attempt, server_run, *answers = view
                messages = tuple(sorted((*messages, Message(client, ticket, attempt, len(answers), call, server_run))))
            views = _set(column.views, client, (*view, OPEN if call >= 0 else NOT_ASKED))
            self._asked[key] = self._columns.of(column._replace(messages=messages, views=views))
        return self._asked[key]

    def _end_attempt(self, number: int, client: int) -> int:
        key = (number, client)
        if key not in self._over:
            column = self._columns.things[number]
            self._check_release(column, client)
            self._over[key] = self._columns.of(column._replace(views=_set(column.views, client, ())))
        return self._over[key]

    def _check_release(self, column: Column, client: int) -> None:
        """That it does nothing which the end of a vote does not do."""
        ticket, attempt, *_ = column.views[client]
        for is_over in (0, 1):
            call = Call(lua.RELEASE, KEYS, (nonce_of(client, ticket), attempt, is_over))
            after, _ = self._ballots.answer(column.node, call)
            if after not in (column.node, column.node._replace(vote=None)):
                raise AssertionError(f"a release does more than end a vote: {column.node} -> {after}")

    # ── for people ───────────────────────────────────────────────────────────────────────────────────────────────

    def _story(self, parents: Mapping[State, State | None], last: State) -> list[str]:
        path = [last]
        while (before := parents[path[-1]]) is not None:
            path.append(before)
        path.reverse()
        story = []
        for before, after in itertools.pairwise(path):
            what = next(what for found, what in self._steps(before) if found == after)
            story.append(self._label(before, after, what))
        return story

    def _label(self, before: State, after: State, what: tuple[Any, ...]) -> str:
        kind, about = what
        then = self._heads.things[after[-1]]
        told = [
            f"; {NAMES[number]} {_outcome(then, self._heads.things[before[-1]])}"
            for number, client in enumerate(then.clients)
            if self._heads.things[before[-1]].clients[number].is_asking and not client.is_asking
        ]
        if kind in ("gives up", "begins"):
            said = f"{NAMES[about]} {'hears no more answers' if kind == 'gives up' else 'begins an attempt'}"
        elif kind in ("ends", "forgets"):
            node = self._columns.things[about].node
            said = (
                f"a node forgets all (its count was {node.counted})"
                if kind == "forgets"
                else f"{NAMES[node.vote.client if node.vote else 0]}'s vote ends on a node with count {node.counted}"
            )
        else:
            message = about.message
            verb = self._calls.things[message.call].script.name.rpartition("/")[2]
            said = f"{verb} of {NAMES[message.client]}'s attempt {message.attempt} arrives: {about.reply}, {kind}"
        return said + "".join(told)


def _judge(head: Head, number: int, fence: int) -> None:
    floor = head.clients[number].floor
    if fence in head.fences:
        raise _Broken(f"{NAMES[number]} is granted {fence}, and so was somebody before")
    if fence < floor:
        raise _Broken(f"{NAMES[number]} is granted {fence}, although {floor} was granted before it began")


def _outcome(after: Head, before: Head) -> str:
    new = set(after.fences) - set(before.fences)
    return f"is granted {new.pop()}" if new else "fails"


def _put(columns: Sequence[int], place: int, column: int, head: int) -> State:
    changed = [*columns]
    changed[place] = column
    changed.sort()
    return (*changed, head)


def _set(things: tuple[Any, ...], place: int, thing: Any) -> tuple[Any, ...]:
    return (*things[:place], thing, *things[place + 1 :])
