"""The explorer: owns a graph and extends it by simulator calls, on a table or on any simulator with keys of states.

Walks of a search sample one pair after the other, those of a survey of a simulator a batch of pairs. Rounds sample many
pairs at once, in chunks that any worker may draw.
"""

import ctypes
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments, stopping
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.compiling import compiled
from smoothplan.base.records import Arrays, Readable
from smoothplan.base.streams import CALLS
from smoothplan.graph import sets, walks
from smoothplan.graph.graph import BY_OUTCOME, ENDED, Graph, Rules, Workspace, backwards, discovered, resized, used
from smoothplan.models.model import GenerativeModel, ModelError, Oracle, States, horizon_of, legal_actions, too_long
from smoothplan.models.tabular import OUTCOME, Tables, TabularModel
from smoothplan.run.chunks import Chunk, Outcome
from smoothplan.run.records import Root, refuse_compiled
from smoothplan.theory.backups import Backup, depends_on_state, is_mixture, restricted, softmaxes

NO_TABLE = Tables(frozen(np.zeros(0, dtype=OUTCOME)), 1, 1)
"""The table of a simulator that is called."""

Key = Callable[[Any], Hashable]
"""Identifies a state: states with the same key are taken to be the same."""


def required_key(key: Key | None) -> None:
    """Refuses a key that cannot be called."""
    if key is not None and not callable(key):
        raise TypeError(f"key must be a function from a state to something hashable, got {key!r}")


def pooled(model: GenerativeModel, backup: Backup, key: Key | None) -> GenerativeModel | None:
    """The model that `finite_horizon` cut off, if its samples count at all stages; None if there is no such model.

    A backup that depends on the state, and a key, may tell stages apart: they are asked about the states of the model.
    """
    base: GenerativeModel | None = getattr(model, "stationary", None)
    return None if key is not None or depends_on_state(backup) else base


class StateIndex:
    """States of a simulator, told apart by a key and numbered in the order of their discovery; the root is number 0."""

    def __init__(self, root: Any, key: Key | None) -> None:
        first = np.asarray(root)
        if key is None and first.dtype.hasobject:
            raise TypeError(f"key must be given for states of objects, whose bytes are addresses: got {root!r}")
        self._key: Key = key or (lambda state: bytes((state + 0.0 if state.dtype.kind == "f" else state).tobytes()))
        self._numbers: dict[Hashable, int] = {}
        self.states: list[Any] = []
        self.number(first[()])  # a number is a number, as successors are

    def find(self, state: Any) -> int:
        """The number of a state; −1 if it is not known."""
        key = self._key(state)
        try:
            return self._numbers.get(key, -1)
        except TypeError:
            raise TypeError(f"key must return something hashable, got {key!r} of state {state.tolist()}") from None

    def number(self, state: Any) -> int:
        """The number of a state, which is new or known."""
        number = self.find(state)
        if number < 0:
            number = self._numbers[self._key(state)] = len(self.states)
            self.states.append(state.copy())
        return number

    def forget(self, count: int) -> None:
        """Forgets all states but the first `count`."""
        for state in self.states[count:]:
            del self._numbers[self._key(state)]
        del self.states[count:]

    @property
    def bytes(self) -> int:
        """Memory of states and keys."""
        states = sum(int(state.nbytes) for state in self.states)
        return states + sys.getsizeof(self._numbers) + sum(map(sys.getsizeof, self._numbers))

    def saved(self) -> Arrays:
        """The states, for a checkpoint."""
        states = np.stack(self.states)
        if states.dtype.hasobject or states.dtype.kind not in "biufV":
            raise ValueError(f"a checkpoint of a search needs states made of numbers, got dtype {states.dtype}")
        return {"states": states}

    def restored(self, arrays: Readable) -> "StateIndex":
        """The index that was saved, with the same root and the same key."""
        result = StateIndex(self.states[0], self._key)
        for state in arrays["states"]:
            result.number(state)
        return result


def searched_table(root: Root, key: Key | None, backup: Backup) -> TabularModel | None:
    """The table that a compiled search draws from; None if the simulator is called.

    A backup that is no mixture of softmaxes is called in Python, so such a search is not compiled as a whole.
    """
    if not is_mixture(backup):
        refuse_compiled(root.engine, "a mixture of softmaxes", backup)
    if isinstance(root.model, TabularModel) and root.engine != "batched" and key is None:
        return root.model
    refuse_compiled(root.engine, "a TabularModel and no key", root.model)
    return None


class Sampled(NamedTuple):
    """The outcomes of n simulator calls: m different ones, which differ in pair, next state or end."""

    states: States  # [m, ...]
    groups: Ints  # [n], the outcome of each call
    rewards: Floats  # [n]
    terminals: NDArray[np.bool_]  # [m]


Draw = Callable[[Iterable[Chunk[Sampled]]], Iterable[tuple[Chunk[Sampled], Outcome[Sampled]]]]
"""Calls a simulator for chunks, and returns the outcomes in the order of the chunks."""


class PairSampler:
    """Calls a simulator at many pairs: one call of `step` for all of them."""

    compiled: ClassVar[bool] = False

    def pairs(self, oracle: Oracle, _: Any, states: States, actions: Ints, counts: Ints) -> Sampled:
        """Calls the simulator `counts` [p] times at the pairs of states [p, ...] and actions [p]."""
        rows = np.repeat(np.arange(len(counts)), counts)
        found = oracle.sample(states[rows], actions[rows])
        groups, first = grouped(2 * rows + found.terminals, found.next_states)
        return Sampled(found.next_states[first], groups, found.rewards, found.terminals[first])


def grouped(labels: Ints, states: States) -> tuple[Ints, Ints]:
    """Groups rows with equal labels [n] and states [n, ...]: the group of each [n], and the first row of each group.

    The two zeros are one. States of objects, whose bytes are addresses, are all taken to differ.
    """
    if states.dtype.hasobject:
        return np.arange(len(labels)), np.arange(len(labels))
    width = states.itemsize * math.prod(states.shape[1:])  # in bytes
    data = np.ascontiguousarray(states + 0.0 if states.dtype.kind == "f" else states).reshape(-1).view(np.uint8)
    words = np.zeros((len(labels), 1 + -(-width // 8)), dtype=np.uint64)
    words[:, 0] = labels
    words.view(np.uint8)[:, 8 : 8 + width] = data.reshape(len(labels), width)
    return _grouped(words)


@partial(compiled, allocates=True)
def _grouped(words: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Groups equal rows of words [n, w]: the group of each row [n], and the first row of each group."""
    count, width = words.shape
    size = 16
    while size < 2 * count:
        size *= 2
    slots = np.full(size, -1)
    groups, first, found = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64), 0
    for row in range(count):
        word = np.uint64(0x9E3779B97F4A7C15)
        for column in range(width):
            word = (word ^ words[row, column]) * np.uint64(0xD6E8FEB86659FD93)
            word ^= word >> np.uint64(32)
        slot = np.int64(word & np.uint64(size - 1))
        while slots[slot] >= 0:
            other, column = first[slots[slot]], 0
            while column < width and words[other, column] == words[row, column]:
                column += 1
            if column == width:
                break
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot], first[found] = found, row
            found += 1
        groups[row] = slots[slot]
    return groups, first[:found]


def chunked(counts: Ints, calls: int) -> Iterator[tuple[slice, Ints]]:
    """Cuts a round into chunks: consecutive pairs, and the number of samples of each.

    Sizes depend on the calls made before and nothing else, so the samples do not depend on who draws them. The first
    chunks of a slow simulator are small; no chunk returns more outcomes than fit into memory easily.
    """
    most = min(max(64, calls // 16), 1 << 17)
    ends = np.cumsum(counts)
    for start in range(0, int(ends[-1]), most):
        stop = min(start + most, int(ends[-1]))
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        part = counts[first : last + 1].copy()
        part[0] = min(int(ends[first]), stop) - start
        if last > first:
            part[-1] = stop - int(ends[last - 1])
        yield slice(int(first), int(last) + 1), part


def drawn(tables: Tables, rows: Ints, counts: Ints, rng: np.random.Generator) -> tuple[Ints, Floats, Ints]:
    """Draws `counts` [p] samples of the pairs `rows` [p], each of which is state·K + action, from a table.

    Returns successors [p, B′], negative at the end of an episode, their rewards, and the count of each.
    """
    outcomes = tables.outcomes.reshape(-1, tables.width)[rows]
    levels = (outcomes["threshold"].astype(np.float64) + 1.0) / 2.0**64
    chances = np.diff(levels, axis=1, prepend=0.0)
    times = rng.multinomial(counts, chances)
    # Rounding leaves a remainder to the last place. If that only pads, the last possible outcome gets it.
    last, end = np.argmax(levels == 1.0, axis=1), tables.width - 1
    left = np.where(last < end, times[:, end], 0)
    times[:, end] -= left
    times[np.arange(len(rows)), last] += left
    return outcomes["successor"], outcomes["reward"], times


def _with_room(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Rows [n, ...] with room for so many, at least."""
    if count <= len(rows):
        return rows
    return np.concatenate([rows, np.zeros((count, *rows.shape[1:]), dtype=rows.dtype)])


class Explorer:
    """A graph that grows.

    Compiled code draws from the table, if there is one. Otherwise the oracle calls the simulator, whose states a key
    identifies, by default all their bytes. The backup is restricted to legal actions.

    Attributes:
        graph: the discovered states. The key of a state is its number in the table, or that of its discovery.
        work: arrays that compiled code overwrites.
    """

    def __init__(
        self,
        rules: Rules,
        oracle: Oracle,
        backup: Backup,
        root: Any,
        table: TabularModel | None = None,
        key: Key | None = None,
    ) -> None:
        backup = restricted(backup, oracle.model)
        self.rules, self.oracle, self.backup, self.table = rules, oracle, backup, table
        self.graph: Graph = resized({}, rules, 64, 4 * 64)  # room for the first states, and outcomes
        self._tables = NO_TABLE if table is None else table.tables
        self._index = StateIndex(root, key) if table is None else None
        columns, actions = rules.soft.shifts.shape
        called = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)  # with a key and a purpose, see `sets.fill`
        self.work = Workspace(
            frames=np.zeros((1, 1 + columns, actions + 1)),
            room=np.zeros((4, min(16, rules.bound))),
            path=np.zeros((rules.longest, 3), dtype=np.int64),
            backup=None if is_mixture(backup) else called(self._call_backup),
            stream=oracle.stream,
        )
        self._loop = np.zeros(1, dtype=walks.LOOP_STATE)
        self._error: BaseException | None = None  # of a called backup: it cannot pass through compiled code
        self._mixture = backup if is_mixture(backup) and table is None and depends_on_state(backup) else None
        self._weights = np.zeros((0, columns))  # [.., J], of the mixture at the states of a simulator
        self._legal = np.zeros((0, actions), dtype=np.bool_)  # [.., K], the same for legal actions
        if table is not None and table.legal is not None:
            self.rules = rules._replace(legal=table.legal)
        self._weigh(0)
        if is_mixture(backup) and self._mixture is None:
            self.rules = self.rules._replace(soft=softmaxes(backup, actions, None if table is None else table.states))
        self.number(np.asarray(root)[()])

    # Walks

    def explore(self, epsilon: float, until: int, rounds: int, limit: int | None = None) -> bool:
        """Samples along at most `rounds` walks; returns whether the intervals at the root leave a gap of at most ε.

        No walk begins after `until` simulator calls in all, and no call is made after a limit, by default the same. A
        later limit lets a trajectory end.

        Raises:
            ModelError: the model broke the bound on successors, or a reward declared deterministic varies.
        """
        limit = until if limit is None else limit
        return self._proceed(None, start=-1, epsilon=epsilon, until=min(until, limit), limit=limit, rounds=rounds)

    def survey(self, q: Floats, start: int, until: int) -> None:
        """Samples for estimates, along walks from a state at a stage, entry `start`. Counts must be pooled.

        Walks follow q, estimates of the action values of the first n discovered states, [n·H, K], read-only. At most
        `until` simulator calls are made in all; fewer if nothing is left to learn.
        """
        if self._index is None:
            self._proceed(q, start=start, until=until)
            return
        self._index.forget(self.count)  # the states of an interrupted call
        while (calls := self.oracle.calls) < until:
            planned, most = np.zeros(self.count * self.rules.actions, np.int64), max(1, calls // walks.WALKING.batch)
            request = q, start, min(most, until - calls), planned
            if not walks.plan_survey(self.graph, self.rules, *request, self.work.stream):
                return
            entries = np.flatnonzero(planned)
            (numbers, actions), counts = np.divmod(entries, self.rules.actions), planned[entries]
            states = np.stack([self.state(number) for number in numbers])
            sampled = PairSampler().pairs(self.oracle, None, states, actions, counts)
            self._record_sampled(np.repeat(entries, counts), sampled)

    def _proceed(self, q: Floats | None, **request: float) -> bool:
        """Select, sample, absorb: all in compiled code on a table; otherwise the samples are made here.

        An interrupted call is forgotten.
        """
        self._loop = np.zeros(1, dtype=walks.LOOP_STATE)
        for name, value in request.items():
            self._loop[name] = value
        if self._index is not None:
            self._index.forget(self.count)  # the states of an interrupted call
        keys, rewards, now = np.zeros(0, dtype=np.int64), np.zeros(0), self._loop[0]
        while True:
            verdict = walks.proceed(self.graph, self.rules, self.work, self._loop, self._tables, q, keys, rewards)
            self._require_backup()
            if verdict == walks.SAMPLE:
                count = int(now["count"])
                states = np.repeat(self.state(now["state"])[None], count, axis=0)
                found = self.oracle.sample(states, np.full(count, now["sampled"]))
                keys = self.keys(found.next_states, found.terminals)
                rewards = np.array(found.rewards)  # of the one layout that compiled code is made for
            elif verdict in (walks.PAUSED, walks.CONVERGED):
                return bool(verdict == walks.CONVERGED)
            else:
                self._resolve(verdict, int(now["entry"]), min(int(now["count"]), self._tables.width))

    def _call_backup(self, key: int, wanted: int) -> None:
        """A backup at the action values in the frame, see `softmaxes.fill_frame`: F, or its policy as running sums.

        After an error, which is kept until compiled code has returned, calls leave the frame as it is, with defaults
        that prove nothing.
        """
        if self._error is not None:
            return
        try:
            (q, answer), name = self.work.frames[0], type(self.backup).__name__
            running = stopping.current.get()
            if running is not None:
                running.check()
            q, states = q[None, :-1].copy(), np.asarray(self._keyed(key))[None]
            if wanted == sets.POLICY:
                policy = arguments.distributions(f"policy of {name}", self.backup.policy(q, states), q.shape[1])
                answer[:-1] = np.cumsum(policy[0])
            else:
                answer[-1] = arguments.array(f"value of {name}", self.backup.value(q, states))[0]
        except BaseException as error:
            self._error = error
            self._loop["until"] = self._loop["limit"] = self._loop["rounds"] = 0  # ends after the present round

    def _require_backup(self) -> None:
        """Raises the error of a backup that compiled code called, if there was one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def sweep(self) -> None:
        """Propagates bounds once through everything that was discovered."""
        sets.sweep(self.graph, self.rules, self.work)
        self._require_backup()

    def order(self) -> Ints:
        """The states [n] in the order of a sweep: the latest discoveries first, or each after its seen successors.

        Raises:
            ModelError: the outcomes seen so far make an episode longer than the model's horizon.
        """
        horizon = horizon_of(self.oracle.model)
        if horizon is None or self.rules.records > 1:
            return np.arange(self.count)[::-1].copy()
        order, steps = backwards(self.graph, self.rules)
        if len(order) < self.count or steps >= horizon:
            left = np.setdiff1d(np.arange(self.count), order)  # they lead to themselves
            raise too_long(self.oracle.model, horizon, self.state(int(left[0]) if len(left) else int(order[-1])))
        return order

    # Pairs

    def sample_pairs(self, entries: Ints, counts: Ints, compared: tuple[int, int], draw: Draw) -> None:
        """Samples pairs [p] and updates their confidence sets. A table is drawn from here, a simulator by `draw`.

        Pairs have ascending entries, and counts [p] of samples. The two actions of the root that are compared are each
        charged half of the calls.
        """
        (states, actions), calls = np.divmod(entries, self.rules.actions), int(self.oracle.stream[CALLS])

        def next_chunk() -> int:
            self.graph.totals[0]["chunks"] += 1
            return int(self.graph.totals[0]["chunks"])  # walks draw from chunk 0

        def charge(calls: int) -> None:
            """Counts calls that the oracle did not make itself."""
            self.oracle.stream[CALLS] += np.uint64(calls)
            self.graph.spent[compared[0]] += calls - calls // 2
            self.graph.spent[compared[1]] += calls // 2

        if self._index is None:
            rows = self.graph.keys[states] * self.rules.actions + actions
            keys, rewards, times = drawn(self._tables, rows, counts, self.oracle.of_chunk(next_chunk()).rng)
            charge(int(counts.sum()))
            seen = np.nonzero(times)
            self.record(entries[seen[0]], keys[seen], rewards[seen], times[seen])
            return
        self._index.forget(self.count)  # the states of an interrupted call
        known, pieces = np.asarray(self._index.states), dict[int, Ints]()

        def chunks() -> Iterator[Chunk[Sampled]]:
            for rows, part in chunked(counts, calls):
                number = next_chunk()
                pieces[number] = np.repeat(entries[rows], part)
                pairs = known[states[rows]], actions[rows], part
                yield Chunk(number, PairSampler.pairs, pairs, len(pieces[number]))

        for chunk, (sampled, *_) in draw(chunks()):
            pairs = pieces.pop(chunk.number)
            charge(len(pairs))
            self._record_sampled(pairs, sampled)

    def _record_sampled(self, pairs: Ints, sampled: Sampled) -> None:
        """Records the outcomes of calls at pairs [n], in ascending order."""
        keys = self.keys(sampled.states, sampled.terminals)
        # Equal outcomes are recorded together if their rewards agree.
        first = np.zeros(len(keys), dtype=np.int64)
        first[sampled.groups[::-1]] = np.arange(len(pairs))[::-1]
        rewards = sampled.rewards[first]
        if np.array_equal(rewards[sampled.groups], sampled.rewards):
            self.record(pairs[first], keys, rewards, np.bincount(sampled.groups, minlength=len(keys)))
        else:
            self.record(pairs, keys[sampled.groups], sampled.rewards, np.ones(len(pairs), dtype=np.int64))

    def record(self, entries: Ints, keys: Ints, rewards: Floats, times: Ints) -> None:
        """Records outcomes [n], each as often as `times` [n] says; those of a pair must be consecutive.

        Keys of next states are negative at the end of an episode. Errors are those of `explore`.
        """
        done = 0
        while done < len(entries):
            outcomes = entries, keys, rewards, times, self.work.room, done
            done, verdict = sets.record_all(self.graph, self.rules, *outcomes)
            if verdict != sets.RECORDED:
                self._resolve(verdict, int(entries[done]))

    # States

    @property
    def count(self) -> int:
        """The number of states that were discovered."""
        return int(self.graph.totals[0]["states"])

    @property
    def bytes(self) -> int:
        """Memory of the graph, a simulator's states and keys included, without room for more."""
        arrays = sum(array.nbytes for array in used(self.graph, self.rules).values())
        return arrays + (0 if self._index is None else self._index.bytes)

    @property
    def states(self) -> Ints | tuple[Any, ...]:
        """The states in the order of their discovery: a table's numbers, or the states of the simulator."""
        if self._index is None:
            return frozen(self.graph.keys[: self.count].copy())  # type: ignore[no-any-return]
        return tuple(self._index.states[: self.count])

    def state(self, number: int) -> Any:
        """The state that was discovered as that number."""
        return self._keyed(int(self.graph.keys[number]))

    def _keyed(self, key: int) -> Any:
        return key if self._index is None else self._index.states[key]

    def number(self, state: Any) -> int:
        """The number of a state, which is new or known."""
        key = int(state) if self._index is None else int(self.keys([state], [False])[0])
        if self.count == len(self.graph.keys):
            self._grow()
        return discovered(self.graph, self.rules, key)

    def numbers(self, states: States) -> Ints:
        """The numbers of states [n, ...], −1 for one that was not discovered, [n]."""
        if self._index is not None:
            groups, first = grouped(np.zeros(len(states), dtype=np.int64), states)
            return np.array([self._index.find(states[row]) for row in first], dtype=np.int64)[groups]
        assert self.table is not None
        result = np.full(self.table.states, -1)
        result[self.graph.keys[: self.count]] = np.arange(self.count)
        return np.asarray(result[states])

    def keys(self, states: Any, terminals: Any) -> Ints:
        """The keys of next states [n, ...] of a simulator, `ENDED` for those that end the episode, [n]."""
        assert self._index is not None
        known = len(self._index.states)
        keys = [ENDED if end else self._index.number(state) for state, end in zip(states, terminals, strict=True)]
        self._weigh(known)
        return np.array(keys, dtype=np.int64)

    def _weigh(self, first: int) -> None:
        """Has compiled code find weights and legal actions of states by their keys, which here are their numbers.

        Those of states from `first` on are new.
        """
        new = [] if self._index is None else self._index.states[first:]
        if not new:
            return
        states, last = np.stack(new), first + len(new)
        if self._mixture is not None:
            self._weights = _with_room(self._weights, last)
            self._weights[first:last] = self._mixture.weights(states)
            self.rules = self.rules._replace(soft=self.rules.soft._replace(weights=frozen(self._weights)))
        if (legal := legal_actions(self.oracle.model, states)) is not None:
            self._legal = _with_room(self._legal, last)
            self._legal[first:last] = legal
            self.rules = self.rules._replace(legal=frozen(self._legal))

    def _resolve(self, verdict: int, entry: int, more: int = 1) -> None:
        """Makes room for outcomes of a pair, or raises the error that they are."""
        if verdict == sets.FULL:
            return self._grow(more, entry)
        record, action = divmod(entry, self.rules.actions)
        where = f"state {np.asarray(self.state(record // self.rules.records)).tolist()}, action {action}"
        by_outcome = self.rules.kind == BY_OUTCOME
        if verdict == sets.TOO_MANY:
            most = self.rules.bound // 2 if by_outcome and not self.rules.one_successor else self.rules.bound
            raise ModelError(
                f"more than {most} different next states at {where}: declare a larger max_successors, or "
                f"give the planner a larger bound on successors"
            )
        if verdict == walks.TOO_LONG:
            raise too_long(self.oracle.model, self.rules.horizon, self.state(record // self.rules.records))
        found = f"a reward declared as fixed by the transition took two values for the same next state at {where}"
        if not by_outcome:
            before = self.graph.pairs[entry]["reward_low"]
            found = f"a reward declared deterministic was {before:g}, then another, at {where}"
        raise ModelError(f"{found}: declare reward_kind='bounded'")

    def _grow(self, more: int = 1, entry: int | None = None) -> None:
        """Makes room for more states, and for as many more outcomes of a pair."""
        graph, room, outcomes = self.graph, len(self.graph.keys), len(self.graph.hits)
        if self.count + more > room:
            room = int(1.2 * room) + more  # little is left unused, and copies stay rare
        if entry is not None:
            places = 2 * (int(graph.pairs[entry]["seen"]) + more) + 2
            if graph.totals[0]["outcomes"] + places > outcomes:
                outcomes = int(1.2 * outcomes) + places
            self._widen(places)
        self.graph = resized(graph._asdict(), self.rules, room, outcomes)

    def _widen(self, places: int) -> None:
        """Has compiled code work on this many outcomes of a pair."""
        if places > self.work.room.shape[1]:
            self.work = self.work._replace(room=np.zeros((4, 2 * places)))

    # Checkpoints

    def saved(self) -> Arrays:
        """The graph and the random streams between two rounds, as arrays of their own."""
        states = {} if self._index is None else self._index.saved()
        return self.oracle.saved() | used(self.graph, self.rules) | states

    def restore(self, arrays: Readable) -> None:
        """Takes on the arrays that `saved` gave, of an explorer that was made with the same arguments."""
        self.graph = resized(arrays, self.rules, len(arrays["keys"]), len(arrays["hits"]))
        self._index = None if self._index is None else self._index.restored(arrays)
        self.oracle.restore(arrays)
        self._widen(int(self.graph.pairs["seen"].max()))
        self._weigh(0)
