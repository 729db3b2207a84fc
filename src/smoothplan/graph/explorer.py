"""The explorer: owns a graph and extends it by simulator calls, on a table or on any simulator with keys of states."""

import sys
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.records import Arrays, Readable, piece, require
from smoothplan.base.streams import CALLS
from smoothplan.graph import sets, walks
from smoothplan.graph.graph import (
    BAD_PAIR,
    BY_OUTCOME,
    CHUNKS,
    ENDED,
    OUTCOMES,
    STATES,
    VIOLATION,
    Graph,
    Rules,
    discover_all,
    graph_arrays,
    grown,
    new_graph,
    read_graph,
)
from smoothplan.graph.sampling import Batch, Draw, chunked, drawn
from smoothplan.models.calls import ModelError
from smoothplan.models.model import Oracle, States
from smoothplan.models.tabular import OUTCOME, Tables, TabularModel
from smoothplan.run.records import Root, refuse_compiled
from smoothplan.theory.backups import Backup, depends_on_state, is_mixture, softmaxes

FIRST_ROOM = 64
"""States that a new graph has room for."""

NO_TABLE = Tables(frozen(np.zeros(0, dtype=OUTCOME)), 1, 1)
"""The table of a simulator that is called."""

Key = Callable[[Any], Hashable]
"""Identifies a state: states with the same key are taken to be the same."""


class StateIndex:
    """States of a simulator, numbered in the order of their discovery; the root is number 0.

    Args:
        root: the first state.
        key: identifies a state, by default by all its bytes.
    """

    def __init__(self, root: Any, key: Key | None) -> None:
        first = np.asarray(root)
        if key is None and first.dtype.hasobject:
            raise TypeError(f"key must be given for states of objects, whose bytes are addresses: got {root!r}")
        self._key: Key = _bytes if key is None else key
        self._numbers: dict[Hashable, int] = {}
        self.states: list[Any] = []
        state = first[()]  # a number is a number, as successors are
        self.find(state)  # raises an error if the key is not hashable
        self.add(state)

    def find(self, state: Any) -> int:
        """The number of a state; −1 if it is not known."""
        key = self._key(state)
        try:
            return self._numbers.get(key, -1)
        except TypeError:
            raise TypeError(f"key must return something hashable, got {key!r} of state {state.tolist()}") from None

    def add(self, state: Any) -> int:
        """Numbers a state that is not known."""
        number = self._numbers[self._key(state)] = len(self.states)
        self.states.append(state.copy())
        return number

    @property
    def bytes(self) -> int:
        """Memory of states and keys."""
        states = sum(int(state.nbytes) for state in self.states)
        return states + sys.getsizeof(self._numbers) + sum(map(sys.getsizeof, self._numbers))

    def saved(self) -> Arrays:
        """The states, for a checkpoint."""
        states = np.stack(self.states)
        if states.dtype.hasobject or states.dtype.kind not in "biufV":
            raise ValueError(f"a search is saved where states are made of numbers, got states of dtype {states.dtype}")
        return {"states": states}

    def restored(self, arrays: Readable) -> "StateIndex":
        """The index that was saved, with the same root and the same key."""
        root = np.asarray(self.states[0])
        states = piece(arrays, "states", root.dtype, None, *root.shape)
        require(len(states) > 0 and states[0].tobytes() == root.tobytes(), "'states' must begin with the root")
        result = StateIndex(root, self._key)
        for state in states[1:]:
            result.add(state)
        require(len(result._numbers) == len(states), "'states' must differ in their keys")
        return result


def _bytes(state: Any) -> bytes:
    """All bytes of a state; the two zeros are one."""
    return bytes((state + 0.0 if state.dtype.kind == "f" else state).tobytes())


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


class Explorer:
    """A graph that grows.

    Args:
        rules: what is fixed.
        oracle: the simulator.
        backup: F; its reference may depend on the state.
        root: the state to plan at.
        table: the simulator as a table, which compiled code draws from; None to call it through the oracle.
        key: identifies a state of a simulator that is called, by default by all its bytes.
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
        self.oracle, self.backup = oracle, backup
        self.graph: Graph = new_graph(rules, FIRST_ROOM, 4 * FIRST_ROOM)
        self._tables = NO_TABLE if table is None else table.tables
        self._table_states = 0 if table is None else table.states
        self._known = StateIndex(root, key) if table is None else None
        self._mixture = backup if table is None and is_mixture(backup) and depends_on_state(backup) else None
        columns, actions = rules.soft.shifts.shape
        self.work = walks.Workspace(
            frames=np.zeros((1, 1 + columns, actions + 1)),
            room=np.zeros((4, min(16, rules.bound))),
            path=np.zeros((walks.TUNING.longest if rules.endless else rules.stages, 3), dtype=np.int64),
        )
        self._loop = np.zeros(1, dtype=walks.LOOP_STATE)
        self._weights = np.zeros((FIRST_ROOM, columns))  # [N, J], if they depend on the state of a simulator
        self.rules = rules
        self._callback = None
        if self._mixture is not None:
            self._use_weights()
        elif is_mixture(backup):
            self.rules = rules._replace(soft=softmaxes(backup, actions, None if table is None else table.states))
        else:
            self._callback = sets.Callback(backup, self.work.frames, self._keyed, self._stop)
        if self._known is None:
            self._numbered(np.array([root]))
        else:
            self._discover(self._known.states[0])

    # Walks

    def explore(self, epsilon: float, until: int, rounds: int, limit: int | None = None) -> bool:
        """Samples along walks; returns whether the intervals at the root leave a gap of at most ε.

        Args:
            epsilon: ε.
            until: no walk begins after this many simulator calls in all.
            rounds: the largest number of walks.
            limit: no call is made after this many in all; `until` by default. A later limit lets a trajectory end.

        Raises:
            ModelError: the model broke the bound on successors, or a reward declared deterministic varies.
        """
        limit = until if limit is None else limit
        return self._proceed(None, start=-1, epsilon=epsilon, until=min(until, limit), limit=limit, rounds=rounds)

    def survey(self, q: Floats, start: int, until: int) -> None:
        """Samples for estimates, along walks that follow estimates. Statistics must be pooled over stages.

        Args:
            q: estimates of the action values that walks follow, [n, K], of the first n discovered states.
            start: the number of the state where they start.
            until: the largest number of simulator calls in all; fewer are made if nothing is left to learn.

        Raises:
            ModelError: as `explore`.
        """
        self._proceed(frozen(np.ascontiguousarray(q).view()), start=start, until=until)

    def _proceed(self, q: Floats | None, **asked: float) -> bool:
        """Select, sample, absorb: all in compiled code on a table; otherwise the samples are made here.

        The loop state of an interrupted call is forgotten.
        """
        self._loop[:] = np.zeros(1, dtype=walks.LOOP_STATE)
        for name, value in asked.items():
            self._loop[name] = value
        successor, backup = ENDED, None if self._callback is None else self._callback.function
        while True:
            verdict = walks.proceed(
                self.graph, self.rules, self._tables, self._loop, self.work, q, successor, backup, self.oracle.stream
            )
            if self._callback is not None:
                self._callback.check()
            if verdict == walks.SAMPLE:
                successor = self._sample_selected()
            elif verdict == walks.FULL:
                self._grow(min(int(self._loop[0]["count"]), self._tables.width), int(self._loop[0]["entry"]))
            elif verdict == walks.BROKEN:
                raise self._broken()
            else:
                return bool(verdict == walks.CONVERGED)

    def _sample_selected(self) -> int:
        """Calls the simulator at the pair that was selected and records the outcomes; the last successor."""
        assert self._known is not None
        loop = self._loop[0]
        count, before = int(loop["count"]), self.oracle.calls
        states = np.repeat(self._known.states[loop["state"]][None], count, axis=0)
        try:
            transition = self.oracle.sample(states, np.full(count, loop["sampled"]))
        finally:  # interrupted calls were made too
            walks.account(self.graph, self._loop, self.oracle.calls - before)
        successors = self._successors(transition.next_states, transition.terminals)
        self.record(np.full(count, loop["entry"]), successors, transition.rewards, np.ones(count, dtype=np.int64))
        return int(successors[-1])

    def _stop(self) -> None:
        """Has compiled code return after the present round."""
        self._loop["until"] = self._loop["limit"] = self._loop["rounds"] = 0

    def sweep(self) -> None:
        """Propagates bounds once through everything that was discovered."""
        backup = None if self._callback is None else self._callback.function
        sets.sweep_once(self.graph, self.rules, self.work.frames, self.work.room, backup)
        if self._callback is not None:
            self._callback.check()

    # Samples of many pairs

    def sample(self, entries: Ints, counts: Ints, compared: tuple[int, int], draw: Draw) -> None:
        """Samples pairs [p] and updates their confidence sets. A table is drawn from here, a simulator by `draw`.

        Args:
            entries: the pairs, in ascending order.
            counts: the number of samples of each.
            compared: two actions of the root, each of which is charged half of the calls.
            draw: calls the simulator.

        Raises:
            ModelError: as `explore`.
        """
        calls = self.oracle.calls
        states, actions = entries // self.rules.actions, entries % self.rules.actions
        if self._known is None:
            rows = self.graph.keys[states] * self.rules.actions + actions
            keys, rewards, times = drawn(self._tables, rows, counts, self.oracle.of_chunk(self._next_chunk()).rng)
            self._charge(int(counts.sum()), compared)
            seen = np.nonzero(times)
            self.record(entries[seen[0]], self._numbered(keys[seen]), rewards[seen], times[seen])
            return
        known = np.asarray(self._known.states)
        pieces: list[slice] = []

        def batches() -> Iterator[Batch]:
            for rows, part in chunked(counts, calls):
                pieces.append(rows)
                yield self._next_chunk(), known[states[rows]], actions[rows], part

        for number, ((*_, part), sampled) in enumerate(draw(batches())):
            self._charge(int(part.sum()), compared)
            numbers = self._successors(sampled.states, sampled.terminals)
            self.record(*sampled.outcomes(np.repeat(entries[pieces[number]], part), numbers))

    def _charge(self, calls: int, compared: tuple[int, int]) -> None:
        """Counts calls that the oracle did not make itself."""
        self.oracle.stream[CALLS] += np.uint64(calls)
        self.graph.spent[compared[0]] += calls - calls // 2
        self.graph.spent[compared[1]] += calls // 2

    def _next_chunk(self) -> int:
        self.graph.totals[CHUNKS] += 1
        return int(self.graph.totals[CHUNKS])  # walks draw from chunk 0

    def record(self, entries: Ints, successors: Ints, rewards: Floats, times: Ints) -> None:
        """Records outcomes [n], each as often as `times` says; those of a pair must be consecutive.

        Raises:
            ModelError: as `explore`.
        """
        outcomes, done = (entries, successors, rewards, times), 0
        while (done := sets.record_all(self.graph, self.rules, *outcomes, self.work.room, done)) < len(entries):
            if done < 0:
                raise self._broken()
            self._grow(1, int(entries[done]))

    def _broken(self) -> ModelError:
        entry, actions = int(self.graph.totals[BAD_PAIR]), self.rules.actions
        record, action = divmod(entry, actions)
        number = record // self.rules.stages if self.rules.stage_wise else record
        where = f"state {np.asarray(self.state(number)).tolist()}, action {action}"
        if self.graph.totals[VIOLATION] == sets.TOO_MANY:
            two_rewards = self.rules.kind == BY_OUTCOME and not self.rules.one_successor
            most = self.rules.bound // 2 if two_rewards else self.rules.bound
            return ModelError(
                f"more than {most} different next states at {where}: declare a larger max_successors, or "
                f"give the planner a larger bound on successors"
            )
        found = (
            f"a reward declared deterministic was {self.graph.pairs[entry]['reward_low']:g}, then another, at {where}"
        )
        if self.rules.kind == BY_OUTCOME:
            found = f"a reward declared as fixed by the transition took two values for the same next state at {where}"
        return ModelError(f"{found}: declare reward_kind='bounded', or give the planner rewards='bounded'")

    # Bounds

    @property
    def intervals(self) -> Floats:
        """The intervals of the root's action values, [K, 2]."""
        actions = self.rules.actions
        return np.stack([self.graph.q_low[:actions], self.graph.q_high[:actions]], axis=1)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the root's value."""
        return float(self.graph.low[0]), float(self.graph.high[0])

    @property
    def span(self) -> tuple[float, float]:
        """The interval of all values before the first sample."""
        return float(self.rules.span_low[0]), float(self.rules.span_high[0])

    @property
    def bytes(self) -> int:
        """Memory of the graph, a simulator's states and keys included, without room for outcomes to come."""
        graph = self.graph
        outcomes = int(graph.pairs["seen"].sum())
        by_outcome = {"successors": outcomes, "hits": outcomes, "rewards": outcomes * (self.rules.kind == BY_OUTCOME)}
        arrays = sum(array.itemsize * by_outcome.get(name, array.size) for name, array in graph._asdict().items())
        return int(arrays) + (0 if self._known is None else self._known.bytes)

    # States

    @property
    def states(self) -> Ints | tuple[Any, ...]:
        """The states in the order of their discovery: a table's numbers, or what the simulator returned."""
        if self._known is None:
            return frozen(self.graph.keys[: self.graph.totals[STATES]].copy())  # type: ignore[no-any-return]
        return tuple(self._known.states)

    def state(self, number: int) -> Any:
        """The state that was discovered as that number."""
        return int(self.graph.keys[number]) if self._known is None else self._known.states[number]

    def _keyed(self, key: int) -> Any:
        """The state with a key in the graph: of a table its number, of a simulator that of its discovery."""
        return key if self._known is None else self._known.states[key]

    def number(self, state: Any) -> int:
        """The number of a state, which is new or known."""
        if self._known is None:
            return int(self._numbered(np.array([state]))[0])
        number = self._known.find(state)
        return self._discover(state) if number < 0 else number

    def numbers(self, states: States) -> Ints:
        """The numbers of states [n, ...], −1 for one that was not discovered, [n]."""
        if self._known is not None:
            return np.array([self._known.find(state) for state in states], dtype=np.int64)
        count = int(self.graph.totals[STATES])
        result = np.full(self._table_states, -1)
        result[self.graph.keys[:count]] = np.arange(count)
        return np.asarray(result[states])

    def _successors(self, states: States, terminals: Any) -> Ints:
        """The numbers of next states [n, ...] of a simulator, `ENDED` for those that end the episode."""
        return np.array([ENDED if end else self.number(state) for state, end in zip(states, terminals, strict=True)])

    def _numbered(self, keys: Ints) -> Ints:
        """The numbers of successors of a table [n], which are new or known."""
        numbers = np.zeros(len(keys), dtype=np.int64)
        done = 0
        while (done := discover_all(self.graph, self.rules, keys, numbers, done)) < len(keys):
            self._grow()
        return numbers

    def _discover(self, state: Any) -> int:
        """Adds a new state of a simulator, whose key in the graph is its number."""
        assert self._known is not None
        number = int(self.graph.totals[STATES])
        if number == len(self.graph.keys):
            self._grow()
        if self._mixture is not None:
            self._weights[number] = self._mixture.weights(state[None])[0]
        if number == len(self._known.states):
            self._known.add(state)
        return int(self._numbered(np.array([number]))[0])

    def _grow(self, more: int = 1, entry: int | None = None) -> None:
        """Makes room for so many states, and as many more outcomes of a pair, if it is short."""
        graph, room, outcomes = self.graph, len(self.graph.keys), len(self.graph.hits)
        if graph.totals[STATES] + more > room:
            room = int(1.2 * room) + more  # little is left unused, and copies stay rare
        if entry is not None:
            places = 2 * (int(graph.pairs[entry]["seen"]) + more) + 2
            if graph.totals[OUTCOMES] + places > outcomes:
                outcomes = int(1.2 * outcomes) + places
            if places > self.work.room.shape[1]:
                self.work = self.work._replace(room=np.zeros((4, 2 * places)))
        self.graph = grown(graph, self.rules, room, outcomes)
        if self._mixture is not None and room > len(self._weights):
            added = np.zeros((room - len(self._weights), self._weights.shape[1]))
            self._weights = np.concatenate([self._weights, added])
            self._use_weights()

    def _use_weights(self) -> None:
        """Compiled code reads the weights, and finds a state's by its key, which here is its number."""
        self.rules = self.rules._replace(soft=self.rules.soft._replace(weights=frozen(self._weights.view())))

    # Checkpoints

    def saved(self) -> Arrays:
        """The graph and the random streams between two rounds, as arrays of their own."""
        states = {} if self._known is None else self._known.saved()
        return self.oracle.saved() | graph_arrays(self.graph, self.rules) | states

    def restore(self, arrays: Readable) -> None:
        """Takes on what `saved` gave, of an explorer that was made with the same arguments.

        Raises:
            ValueError: the arrays are not those of such an explorer, which is then as it was.
        """
        graph, weights = read_graph(arrays, self.rules), self._weights
        known = None if self._known is None else self._known.restored(arrays)
        keys = graph.keys[: graph.totals[STATES]]
        if known is None:
            require(keys[0] == self.graph.keys[0], "'keys' must begin with the root")
            require(((keys >= 0) & (keys < self._table_states)).all(), "'keys' must be states of the model")
        else:
            require(np.array_equal(keys, np.arange(len(known.states))), "'keys' must be numbers of the 'states'")
            if self._mixture is not None:
                weights = np.zeros((len(graph.keys), weights.shape[1]))
                weights[: len(keys)] = [self._mixture.weights(state[None])[0] for state in known.states]
        self.oracle.restore(arrays)
        self.graph, self._known, self._weights = graph, known, weights
        widest = int(graph.pairs["seen"].max(initial=0))
        if widest > self.work.room.shape[1]:
            self.work = self.work._replace(room=np.zeros((4, 2 * widest)))
        if self._mixture is not None:
            self._use_weights()
