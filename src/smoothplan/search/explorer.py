"""Explorers run the rounds of a search: compiled on tables, and in Python on any simulator whose states have keys."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.backups import Backup, depends_on_state
from smoothplan.compiling import compiled
from smoothplan.engines.kernels import softmaxes
from smoothplan.models.base import Oracle, States
from smoothplan.models.calls import ModelError
from smoothplan.models.tabular import TabularModel
from smoothplan.search import bounds, walk
from smoothplan.search import saved as saving
from smoothplan.search import survey as surveys
from smoothplan.search.graph import (
    DEBT,
    ENDED,
    OFFENCE,
    OFFENDER,
    STATES,
    Graph,
    Rules,
    discovered,
    following,
    grown,
    new_graph,
    pair_at,
    used_bytes,
)
from smoothplan.search.saved import Arrays, Readable, require
from smoothplan.search.ugape import leaders
from smoothplan.streams import CALLS

FIRST_ROOM = 64
"""States that a new graph has room for."""

GROWTH = 1.2
"""A graph that is full gets room for so many times as many states."""

Key = Callable[[Any], Hashable]
"""What identifies a state: states with the same key are taken for the same."""


class Explorer(ABC):
    """A search in progress.

    Args:
        rules: what is fixed.
        oracle: the simulator.
    """

    def __init__(self, rules: Rules, oracle: Oracle) -> None:
        self.rules = rules
        self.graph: Graph = new_graph(rules, FIRST_ROOM)
        self.oracle = oracle
        columns, actions = rules.soft.shifts.shape
        self.frames = np.zeros((1, 1 + columns, actions + 1))
        self.room = np.zeros((4, rules.bound))
        self.path = np.zeros((walk.LONGEST if rules.endless else rules.stages, 3), dtype=np.int64)

    @abstractmethod
    def explore(self, epsilon: float, until: int, rounds: int, limit: int | None = None) -> bool:
        """Rounds of the search; whether the gap at the root is within ε.

        Args:
            epsilon: ε.
            until: no round begins after so many simulator calls in all.
            rounds: how many rounds, at most.
            limit: no more calls are made in all; `until` by default. It lets a trajectory end where it would.

        Raises:
            ModelError: the model broke the bound on successors, or a reward declared deterministic varies.
        """

    @abstractmethod
    def survey(self, q: Floats, start: int, until: int) -> None:
        """Samples for estimates: see `smoothplan.search.survey`. Statistics must be pooled over stages.

        Args:
            q: estimates of the action values that walks follow, [n, K], of the first n discovered states.
            start: the number of the state where they start.
            until: no more simulator calls are made in all; fewer if nothing is left to learn.

        Raises:
            ModelError: as `explore`.
        """

    @abstractmethod
    def state(self, number: int) -> Any:
        """The state that was discovered as that number."""

    @abstractmethod
    def number(self, state: Any) -> int:
        """The number of a state, which is new or known."""

    @abstractmethod
    def numbers(self, states: States) -> Ints:
        """The numbers of states [n, ...], −1 where one was not discovered, [n]."""

    def saved(self) -> Arrays:
        """Everything that the search depends on from here, between two rounds of it, as arrays of its own."""
        return saving.oracle_arrays(self.oracle) | saving.graph_arrays(self.graph, self.rules) | self._saved_states()

    @abstractmethod
    def restore(self, arrays: Readable) -> None:
        """Goes back, or on, to what `saved` gave, of an explorer that was made with the same arguments.

        Raises:
            ValueError: they are no such arrays. The explorer is then as it was.
        """

    @abstractmethod
    def _saved_states(self) -> Arrays:
        """What the discovered states are."""

    @property
    def intervals(self) -> Floats:
        """The intervals of the root's action values, [K, 2]."""
        actions = self.rules.actions
        return np.stack([self.graph.q_low[:actions], self.graph.q_high[:actions]], axis=1)

    @property
    def leaders(self) -> tuple[int, int, float]:
        """The root's best action, its challenger and the gap; see `ugape`."""
        actions = self.rules.actions
        return leaders(self.graph.q_low[:actions], self.graph.q_high[:actions])

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the root's value."""
        return float(self.graph.low[0]), float(self.graph.high[0])

    @property
    def bytes(self) -> int:
        """Memory of what was discovered."""
        return used_bytes(self.graph)

    def _grow(self) -> None:
        self.graph = grown(self.graph, self.rules, self._more_room(len(self.graph.keys)))

    def _more_room(self, room: int) -> int:
        return int(GROWTH * room) + self.rules.bound

    def _restore(self, arrays: Readable, keys: Ints) -> None:
        """Restores everything but what the states are, whose keys are known to be right."""
        streams = saving.read_streams(arrays)
        graph = saving.read_graph(arrays, self.rules, keys, self._saved_room(arrays, len(keys)), int(streams[1][CALLS]))
        self.graph = graph
        saving.set_streams(self.oracle, streams)

    def _saved_room(self, arrays: Readable, states: int) -> int:
        """The room of a saved graph, which must be what so many states may have led to.

        It is kept, for a compiled search begins a new count of idle walks whenever it needs more room.
        """
        wanted = int(saving.piece(arrays, "room", np.int64, 1)[0])
        room = FIRST_ROOM
        while room < wanted and room < states + max(self.rules.bound, len(self.path)):
            room = self._more_room(room)
        require(room == wanted and states <= room, f"'room' must be one that {states} states lead to, got {wanted}")
        return room

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


class TableExplorer(Explorer):
    """The search on a table of transitions, all of it compiled."""

    def __init__(self, rules: Rules, oracle: Oracle, backup: Backup, root: int, model: TabularModel) -> None:
        super().__init__(rules._replace(soft=softmaxes(backup, rules.actions, model.states)), oracle)
        self._tables = model.tables
        discovered(self.graph, self.rules, root)

    def explore(self, epsilon: float, until: int, rounds: int, limit: int | None = None) -> bool:
        """See `Explorer`."""
        limit = until if limit is None else limit
        while True:
            verdict = walk.explore(
                self.graph,
                self.rules,
                self._tables,
                epsilon,
                min(until, limit),
                limit,
                rounds,
                self.frames,
                self.room,
                self.path,
                self.oracle.stream,
            )
            if verdict == walk.BROKEN:
                raise self._broken()
            if verdict != walk.FULL:
                return bool(verdict == walk.CONVERGED)
            self._grow()

    def survey(self, q: Floats, start: int, until: int) -> None:
        """See `Explorer`."""
        while True:
            verdict = surveys.survey(self.graph, self.rules, self._tables, q, start, until, self.oracle.stream)
            if verdict == surveys.BROKEN:
                raise self._broken()
            if verdict != surveys.FULL:
                return
            self._grow()

    def state(self, number: int) -> int:
        """The model's number of a state."""
        return int(self.graph.keys[number])

    def number(self, state: Any) -> int:
        """See `Explorer`."""
        if self.graph.totals[STATES] == len(self.graph.keys):
            self._grow()
        return discovered(self.graph, self.rules, int(state))

    def numbers(self, states: States) -> Ints:
        """See `Explorer`."""
        count = int(self.graph.totals[STATES])
        result = np.full(len(self._tables.outcomes) // (self._tables.actions * self._tables.width), -1)
        result[self.graph.keys[:count]] = np.arange(count)
        return np.asarray(result[states])

    def _saved_states(self) -> Arrays:
        return {"keys": self.graph.keys[: self.graph.totals[STATES]].copy()}

    def restore(self, arrays: Readable) -> None:
        """See `Explorer`."""
        keys = saving.piece(arrays, "keys", np.int64, None)
        require(len(keys) > 0 and keys[0] == self.graph.keys[0], "'keys' must begin with the root")
        states = len(self._tables.outcomes) // (self._tables.actions * self._tables.width)
        require(((keys >= 0) & (keys < states)).all(), f"'keys' must be states in 0..{states - 1}")
        require(len(np.unique(keys)) == len(keys), "'keys' must differ")
        self._restore(arrays, keys)


class KeyedExplorer(Explorer):
    """The search on any simulator whose states can be told apart by a key.

    Args:
        rules: what is fixed.
        oracle: the simulator.
        backup: F; its reference may depend on the state.
        root: the state to plan at.
        key: what identifies a state, by default all its bytes.
    """

    def __init__(self, rules: Rules, oracle: Oracle, backup: Backup, root: Any, key: Key | None) -> None:
        self._backup = backup if depends_on_state(backup) else None
        self._weights = np.zeros((FIRST_ROOM, len(rules.soft.shifts)))  # [N, J], where they depend on the state
        super().__init__(rules, oracle)
        if self._backup is None:
            self.rules = rules._replace(soft=softmaxes(backup, rules.actions, None))
        else:
            self._use_weights()
        self._key: Key = _bytes if key is None else key
        self._numbers: dict[Hashable, int] = {}
        self._states: list[Any] = []
        self.number(np.asarray(root)[()])  # a number is a number, as successors are

    def state(self, number: int) -> Any:
        """The state itself."""
        return self._states[number]

    @property
    def bytes(self) -> int:
        """Memory of what was discovered, states and keys included."""
        states = sum(int(state.nbytes) for state in self._states)
        return super().bytes + states + sys.getsizeof(self._numbers) + sum(map(sys.getsizeof, self._numbers))

    def numbers(self, states: States) -> Ints:
        """See `Explorer`."""
        return np.array([self._numbers.get(self._key(state), -1) for state in states], dtype=np.int64)

    def number(self, state: Any) -> int:
        """See `Explorer`."""
        key = self._key(state)
        try:
            number = self._numbers.get(key)
        except TypeError:
            raise TypeError(f"key must return something hashable, got {key!r} of state {state.tolist()}") from None
        if number is None:
            number = len(self._states)
            if number == len(self.graph.keys):
                self._grow()
            if self._backup is not None:
                self._weights[number] = self._backup.weights(state[None])[0]
            self._states.append(state.copy())
            self._numbers[key] = number
            discovered(self.graph, self.rules, number)
        return number

    def _saved_states(self) -> Arrays:
        states = np.stack(self._states)
        if states.dtype.hasobject or states.dtype.kind not in "biufV":
            raise ValueError(f"a search is saved where states are made of numbers, got states of dtype {states.dtype}")
        return {"states": states}

    def restore(self, arrays: Readable) -> None:
        """See `Explorer`."""
        root = np.asarray(self._states[0])
        states = saving.piece(arrays, "states", root.dtype, None, *root.shape)
        require(len(states) > 0 and states[0].tobytes() == root.tobytes(), "'states' must begin with the root")
        require(root.dtype.kind != "f" or np.isfinite(states[1:]).all(), "'states' must be finite")
        found = [state.copy() for state in states]
        weights = self._weights
        if self._backup is not None:
            weights = np.zeros((self._saved_room(arrays, len(found)), weights.shape[1]))
        numbers: dict[Hashable, int] = {}
        try:
            for number, state in enumerate(found):
                numbers.setdefault(self._key(state), number)
                if self._backup is not None:
                    weights[number] = self._backup.weights(state[None])[0]
        except Exception as error:  # of functions that were made for other states
            raise ValueError(f"the saved arrays do not fit: 'states' has one that is unknown: {error}") from error
        require(len(numbers) == len(found), "'states' must differ in their keys")
        self._restore(arrays, np.arange(len(found)))
        self._states, self._numbers, self._weights = found, numbers, weights
        if self._backup is not None:
            self._use_weights()

    def _grow(self) -> None:
        super()._grow()
        if self._backup is not None:
            weights = np.zeros((len(self.graph.keys), self._weights.shape[1]))
            weights[: len(self._weights)] = self._weights
            self._weights = weights
            self._use_weights()

    def _use_weights(self) -> None:
        """Compiled code reads the weights, and finds a state's by its key, which here is its number."""
        self.rules = self.rules._replace(soft=self.rules.soft._replace(weights=frozen(self._weights.view())))

    def _sample(self, number: int, stage: int, action: int, count: int) -> int:
        """Calls the simulator so many times at a pair; the last successor."""
        states = np.repeat(self._states[number][None], count, axis=0)
        transition = self.oracle.sample(states, np.full(count, action))
        successors = np.array(
            [
                ENDED if end else self.number(state)
                for state, end in zip(transition.next_states, transition.terminals, strict=True)
            ]
        )
        entry = pair_at(self.rules, number, stage, action)
        if not _absorb(self.graph, self.rules, entry, successors, transition.rewards):
            raise self._broken()
        return int(successors[-1])

    def explore(self, epsilon: float, until: int, rounds: int, limit: int | None = None) -> bool:
        """See `Explorer`; the same rounds as `walk.explore`."""
        limit = until if limit is None else limit
        until = min(until, limit)
        idle = 0
        for _ in range(rounds):
            best, challenger, gap = self.leaders
            if gap <= epsilon:
                return True
            before = self.oracle.calls
            if before >= until:
                return False
            action = walk.wider(self.graph, best, challenger)
            focused = self.rules.focused and bool(self.graph.totals[DEBT] <= 0)
            try:
                if focused:
                    steps = self._focused_round(action, gap, until - before, idle)
                else:
                    steps = self._trajectory(action, gap, limit - before)
            finally:  # an interrupted round has made its calls too
                made = self.oracle.calls - before
                self.graph.spent[action] += made
                self.graph.totals[DEBT] += walk.owed(focused, made)
            idle = 0 if made > 0 else idle + 1
            walk.settle(self.graph, self.rules, before + made, self.frames, self.room, self.path, steps)
        return False

    def survey(self, q: Floats, start: int, until: int) -> None:
        """See `Explorer`; the same as `survey.survey`."""
        idle = 0
        while self.oracle.calls < until and idle < walk.IDLE:
            entry = surveys.curious_walk(self.graph, self.rules, q, start, self.oracle.stream)
            if entry < 0:
                idle += 1
                continue
            idle = 0
            number, action = divmod(entry, self.rules.actions)
            self._sample(number, 0, action, min(walk.batch_size(self.graph, entry), until - self.oracle.calls))

    def _focused_round(self, action: int, gap: float, calls: int, idle: int) -> int:
        """A focused walk and a batch of at most so many calls; how much of the path to back up."""
        stream = self.oracle.stream
        steps, place, stake = walk.focused_walk(self.graph, self.rules, action, gap, self.frames, self.path, stream)
        place = walk.place_to_sample(steps, place, stake, idle)
        if place < 0:
            return steps
        number, stage, sampled = self.path[place].tolist()
        entry = pair_at(self.rules, number, stage, sampled)
        self._sample(number, stage, sampled, min(walk.batch_size(self.graph, entry), calls))
        return place + 1

    def _trajectory(self, action: int, gap: float, calls: int) -> int:
        """A trajectory of at most so many calls; its length."""
        number, stage, steps, weight = 0, 0, 0, 1.0
        while True:
            self.path[steps] = number, stage, action
            number = self._sample(number, stage, action, 1)
            steps += 1
            stage = following(self.rules, stage)
            weight *= self.rules.discount
            if steps == calls or not walk.goes_on(self.graph, self.rules, number, stage, steps, weight, gap):
                return steps
            action = walk.next_action(self.graph, self.rules, number, stage, self.frames, self.oracle.stream)


def _bytes(state: Any) -> bytes:
    """All bytes of a state; the two zeros are one."""
    return bytes((state + 0.0 if state.dtype.kind == "f" else state).tobytes())


@compiled
def _absorb(graph: Graph, rules: Rules, entry: int, successors: Ints, rewards: Floats) -> bool:
    """Takes outcomes of a pair into account; whether the model kept its promises."""
    for i in range(len(successors)):
        if bounds.record(graph, rules, entry, successors[i], rewards[i]) != bounds.FINE:
            return False
    bounds.refresh(graph, rules, entry)
    return True
