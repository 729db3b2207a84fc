"""A search by bounds in progress: on a table of transitions, or on any simulator whose states have keys."""

import sys
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.backups import Backup, depends_on_state, is_mixture
from smoothplan.engines.kernels import softmaxes
from smoothplan.models.base import Oracle, States
from smoothplan.models.calls import ModelError
from smoothplan.models.tabular import OUTCOME, Tables, TabularModel
from smoothplan.search import bounds, loop
from smoothplan.search import saved as saving
from smoothplan.search.callback import Callback
from smoothplan.search.graph import ENDED, OFFENCE, OFFENDER, STATES, Graph, Rules, discovered, grown, new_graph
from smoothplan.search.saved import Arrays, Readable, require

FIRST_ROOM = 64
"""States that a new graph has room for."""

NO_TABLE = Tables(frozen(np.zeros(0, dtype=OUTCOME)), 1, 1)
"""In place of a table where a simulator is called."""

Key = Callable[[Any], Hashable]
"""What identifies a state: states with the same key are taken for the same."""


class KnownStates:
    """States of a simulator, numbered in the order of their discovery; the root is number 0.

    Args:
        root: the first state.
        key: what identifies a state, by default all its bytes.
    """

    def __init__(self, root: Any, key: Key | None) -> None:
        first = np.asarray(root)
        if key is None and first.dtype.hasobject:
            raise TypeError(f"key must be given for states of objects, whose bytes are addresses: got {root!r}")
        self._key: Key = _bytes if key is None else key
        self._numbers: dict[Hashable, int] = {}
        self.states: list[Any] = []
        state = first[()]  # a number is a number, as successors are
        self.find(state)  # complains of a key that is no key
        self.add(state)

    def find(self, state: Any) -> int:
        """The number of a state; −1 where it is not known."""
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

    def restored(self, arrays: Readable) -> "KnownStates":
        """What was saved, with the same root and the same key."""
        root = np.asarray(self.states[0])
        states = saving.piece(arrays, "states", root.dtype, None, *root.shape)
        require(len(states) > 0 and states[0].tobytes() == root.tobytes(), "'states' must begin with the root")
        result = KnownStates(root, self._key)
        for state in states[1:]:
            result.add(state)
        require(len(result._numbers) == len(states), "'states' must differ in their keys")
        return result


class Explorer:
    """A search by bounds in progress.

    Args:
        rules: what is fixed.
        oracle: the simulator.
        backup: F; its reference may depend on the state.
        root: the state to plan at.
        table: the simulator as a table, which compiled code draws from; None to call it through the oracle.
        key: what identifies a state of a simulator that is called, by default all its bytes.
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
        self.oracle = oracle
        self.graph: Graph = new_graph(rules, FIRST_ROOM)
        self._tables = NO_TABLE if table is None else table.tables
        self._table_states = 0 if table is None else table.states
        self._known = KnownStates(root, key) if table is None else None
        self._mixture = backup if table is None and is_mixture(backup) and depends_on_state(backup) else None
        columns, actions = rules.soft.shifts.shape
        self.work = loop.Workspace(
            frames=np.zeros((1, 1 + columns, actions + 1)),
            room=np.zeros((4, rules.bound)),
            path=np.zeros((loop.LONGEST if rules.endless else rules.stages, 3), dtype=np.int64),
        )
        self._turn = np.zeros(1, dtype=loop.TURN)
        self._weights = np.zeros((FIRST_ROOM, columns))  # [N, J], where they depend on the state of a simulator
        self.rules = rules
        self._callback = None
        if self._mixture is not None:
            self._use_weights()
        elif is_mixture(backup):
            self.rules = rules._replace(soft=softmaxes(backup, actions, None if table is None else table.states))
        else:
            self._callback = Callback(backup, self.work.frames, self._keyed, self._stop)
        if self._known is None:
            discovered(self.graph, self.rules, int(root))
        else:
            self._discover(self._known.states[0])

    # The loop

    def explore(self, epsilon: float, until: int, rounds: int, limit: int | None = None) -> bool:
        """Rounds of the search; whether the gap at the root is within ε.

        Args:
            epsilon: ε.
            until: no round begins after this many simulator calls in all.
            rounds: the largest number of rounds.
            limit: no call is made after this many in all; `until` by default. It lets a trajectory end where it would.

        Raises:
            ModelError: the model broke the bound on successors, or a reward declared deterministic varies.
        """
        limit = until if limit is None else limit
        turn = self._begin(start=-1, until=min(until, limit))
        turn["epsilon"], turn["limit"], turn["rounds"] = epsilon, limit, rounds
        return self._proceed(np.zeros((0, self.rules.actions))) == loop.CONVERGED

    def survey(self, q: Floats, start: int, until: int) -> None:
        """Samples for estimates, along walks that follow estimates. Statistics must be pooled over stages.

        Args:
            q: estimates of the action values that walks follow, [n, K], of the first n discovered states.
            start: the number of the state where they start.
            until: the simulator calls in all, at most; fewer if nothing is left to learn.

        Raises:
            ModelError: as `explore`.
        """
        self._begin(start=start, until=until)
        self._proceed(q)

    def _begin(self, start: int, until: int) -> Any:
        """A new turn: whatever an interrupted one has left behind is forgotten."""
        self._turn[:] = np.zeros(1, dtype=loop.TURN)
        self._turn["start"], self._turn["until"] = start, until
        return self._turn

    def _proceed(self, q: Floats) -> int:
        """Select, sample, absorb: all in compiled code on a table; otherwise the samples are made here."""
        q = frozen(np.ascontiguousarray(q).view())
        successor, backup = ENDED, None if self._callback is None else self._callback.function
        while True:
            verdict = loop.proceed(
                self.graph, self.rules, self._tables, self._turn, self.work, q, successor, backup, self.oracle.stream
            )
            if self._callback is not None:
                self._callback.check()
            if verdict == loop.SAMPLE:
                successor = self._sample()
            elif verdict == loop.FULL:
                self._grow()
            elif verdict == loop.BROKEN:
                raise self._broken()
            else:
                return verdict

    def _sample(self) -> int:
        """Calls the simulator at the pair that was selected and records the outcomes; the last successor."""
        assert self._known is not None
        turn = self._turn[0]
        count, before = int(turn["count"]), self.oracle.calls
        states = np.repeat(self._known.states[turn["state"]][None], count, axis=0)
        try:
            transition = self.oracle.sample(states, np.full(count, turn["sampled"]))
        finally:  # interrupted calls were made too
            loop.account(self.graph, self._turn, self.oracle.calls - before)
        successors = np.array(
            [
                ENDED if end else self.number(state)
                for state, end in zip(transition.next_states, transition.terminals, strict=True)
            ]
        )
        if not bounds.record_all(self.graph, self.rules, int(turn["entry"]), successors, transition.rewards):
            raise self._broken()
        return int(successors[-1])

    def _stop(self) -> None:
        """Has compiled code return after the round that is under way."""
        self._turn["until"] = self._turn["limit"] = self._turn["rounds"] = 0

    def _broken(self) -> ModelError:
        entry, actions = int(self.graph.totals[OFFENDER]), self.rules.actions
        record, action = divmod(entry, actions)
        number = record // self.rules.stages if self.rules.stage_wise else record
        where = f"state {np.asarray(self.state(number)).tolist()}, action {action}"
        if self.graph.totals[OFFENCE] == bounds.TOO_MANY:
            return ModelError(
                f"more than {self.rules.bound} different next states at {where}: declare a larger max_successors, or "
                f"give the planner a larger bound on successors"
            )
        return ModelError(
            f"a reward declared deterministic was {self.graph.pairs[entry]['reward_low']:g}, then another, at {where}: "
            "declare reward_kind='bounded', or give the planner rewards='bounded'"
        )

    def tighten(self) -> None:
        """Propagates bounds once through everything that was discovered."""
        backup = None if self._callback is None else self._callback.function
        bounds.sweep(self.graph, self.rules, self.work.frames, self.work.room, backup)
        if self._callback is not None:
            self._callback.check()

    # What is known

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
    def bytes(self) -> int:
        """Memory of what was discovered, a simulator's states and keys included."""
        return sum(array.nbytes for array in self.graph) + (0 if self._known is None else self._known.bytes)

    # States

    @property
    def states(self) -> Ints | tuple[Any, ...]:
        """The states themselves, in the order of their discovery: a table's numbers, or what the simulator returned."""
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
            if self.graph.totals[STATES] == len(self.graph.keys):
                self._grow()
            return discovered(self.graph, self.rules, int(state))
        number = self._known.find(state)
        return self._discover(state) if number < 0 else number

    def numbers(self, states: States) -> Ints:
        """The numbers of states [n, ...], −1 where one was not discovered, [n]."""
        if self._known is not None:
            return np.array([self._known.find(state) for state in states], dtype=np.int64)
        count = int(self.graph.totals[STATES])
        result = np.full(self._table_states, -1)
        result[self.graph.keys[:count]] = np.arange(count)
        return np.asarray(result[states])

    def _discover(self, state: Any) -> int:
        """Takes up a new state of a simulator, whose key in the graph is its number."""
        assert self._known is not None
        number = int(self.graph.totals[STATES])
        if number == len(self.graph.keys):
            self._grow()
        if self._mixture is not None:
            self._weights[number] = self._mixture.weights(state[None])[0]
        if number == len(self._known.states):
            self._known.add(state)
        return discovered(self.graph, self.rules, number)

    def _grow(self) -> None:
        room = int(1.2 * len(self.graph.keys)) + self.rules.bound  # little is left unused, and copies stay rare
        self.graph = grown(self.graph, self.rules, room)
        if self._mixture is not None:
            more = np.zeros((room - len(self._weights), self._weights.shape[1]))
            self._weights = np.concatenate([self._weights, more])
            self._use_weights()

    def _use_weights(self) -> None:
        """Compiled code reads the weights, and finds a state's by its key, which here is its number."""
        self.rules = self.rules._replace(soft=self.rules.soft._replace(weights=frozen(self._weights.view())))

    # Checkpoints

    def saved(self) -> Arrays:
        """Everything that the search depends on from here, between two rounds of it, as arrays of its own."""
        states = {"keys": np.array(self.states)} if self._known is None else self._known.saved()
        return saving.oracle_arrays(self.oracle) | saving.graph_arrays(self.graph, self.rules) | states

    def restore(self, arrays: Readable) -> None:
        """Takes on what `saved` gave, of an explorer that was made with the same arguments.

        Raises:
            ValueError: they are not such arrays. The explorer is then as it was.
        """
        known, weights = self._known, self._weights
        if known is None:
            keys = saving.piece(arrays, "keys", np.int64, None)
            require(len(keys) > 0 and keys[0] == self.graph.keys[0], "'keys' must begin with the root")
            require(((keys >= 0) & (keys < self._table_states)).all(), "'keys' must be states of the model")
        else:
            known = known.restored(arrays)
            keys = np.arange(len(known.states))
        streams = saving.read_streams(arrays)
        graph = saving.read_graph(arrays, self.rules, keys)
        if self._mixture is not None and known is not None:
            weights = np.zeros((len(graph.keys), weights.shape[1]))
            weights[: len(keys)] = [self._mixture.weights(state[None])[0] for state in known.states]
        self.graph, self._known, self._weights = graph, known, weights
        if self._mixture is not None:
            self._use_weights()
        saving.set_streams(self.oracle, streams)


def _bytes(state: Any) -> bytes:
    """All bytes of a state; the two zeros are one."""
    return bytes((state + 0.0 if state.dtype.kind == "f" else state).tobytes())
