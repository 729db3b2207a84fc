"""A search by bounds in progress: on a table of transitions, or on any simulator whose states have keys."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from smoothplan import curvature
from smoothplan.arguments import Floats, Ints, frozen
from smoothplan.backups import Backup, depends_on_state, is_mixture
from smoothplan.engines.kernels import softmaxes
from smoothplan.models.base import Oracle, States, declared_values
from smoothplan.models.calls import ModelError
from smoothplan.models.tabular import OUTCOME, Tables, TabularModel
from smoothplan.search import bounds, loop
from smoothplan.search import saved as saving
from smoothplan.search.batches import PairSampler, Sampled, chunked, drawn
from smoothplan.search.callback import Callback
from smoothplan.search.graph import (
    BY_OUTCOME,
    CHUNKS,
    COMPARED,
    ENDED,
    OFFENCE,
    OFFENDER,
    OUTCOMES,
    ROUNDS,
    STATES,
    Graph,
    Rules,
    discover_all,
    grown,
    new_graph,
)
from smoothplan.search.known import Key, KnownStates
from smoothplan.search.rounds import Rounds, View
from smoothplan.search.saved import Arrays, Readable, require
from smoothplan.search.ugape import Certificate, certificate
from smoothplan.streams import CALLS

FIRST_ROOM, FIRST_OUTCOMES = 64, 256
"""States and outcomes that a new graph has room for."""

WIDTH = 16
"""Outcomes of one pair that there is room for at first."""

NO_TABLE = Tables(frozen(np.zeros(0, dtype=OUTCOME)), 1, 1)
"""In place of a table where a simulator is called."""

Batch = tuple[int, States, Ints, Ints]
"""The number of a chunk, and its pairs: states [p, ...], actions [p], and how often each is sampled."""

Draw = Callable[[Iterable[Batch]], Iterator[tuple[Batch, Sampled]]]
"""Calls a simulator for chunks, and returns what they brought in their order."""


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
        self.graph: Graph = new_graph(rules, FIRST_ROOM, FIRST_OUTCOMES)
        self._tables = NO_TABLE if table is None else table.tables
        self._table_states = 0 if table is None else table.states
        self._known = KnownStates(root, key) if table is None else None
        self._mixture = backup if table is None and is_mixture(backup) and depends_on_state(backup) else None
        columns, actions = rules.soft.shifts.shape
        self.work = loop.Workspace(
            frames=np.zeros((1, 1 + columns, actions + 1)),
            room=np.zeros((4, min(WIDTH, rules.bound))),
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
            self._numbered(np.array([root]))
        else:
            self._discover(self._known.states[0])
        self._backup = backup
        self.draw: Draw = self._draw_here
        self.rounds: Rounds | None = None
        if rules.endless and rules.focused and rules.published < 0.0 and is_mixture(backup):
            self.rounds = Rounds(self._policy)
        self._declares_values = declared_values(oracle.model) is not None
        self.graph.totals[COMPARED] = 1

    def _policy(self, q: Floats) -> Floats:
        """∇F at the first n states, [n, K]."""
        states = np.asarray(self.states)[: len(q)] if depends_on_state(self._backup) else None
        return np.asarray(self._backup.policy(q, states))

    # Rounds

    def search(self, epsilon: float, until: int, rounds: int, limit: int | None = None) -> bool:
        """Walks while they discover much, and one round where states recur; whether the gap is within ε.

        Args:
            epsilon, until, rounds: as for `explore`.
            limit: no call is made after this many in all, `until` by default; a round may use them all.
        """
        limit, calls = until if limit is None else limit, self.oracle.calls
        if self.rounds is None:
            return self.explore(epsilon, until, rounds, limit)
        view = View(self.graph, self.rules, self.work)
        if not self.rounds.take_over(self.graph, calls):
            if self._declares_values and calls >= 2 * self.graph.totals[COMPARED]:
                self.graph.totals[COMPARED] = calls
                self.rounds.sweep(view, epsilon)
                self._require_possible()
            return self.explore(epsilon, until, rounds, limit)
        brackets = self.rounds.tighten(view, epsilon, calls)
        self._require_possible()
        gap = self.certificate.gap
        if gap <= epsilon:
            return True
        if calls < limit:
            counts = self.rounds.counts(view, brackets, gap, epsilon, calls, limit - calls)
            if not counts.any():  # no sample helps: ties of what is known for certain
                return self.explore(epsilon, until, rounds, limit)
            self._sample_all(np.flatnonzero(counts), counts[counts > 0])
            self.graph.totals[ROUNDS] += 1
        return False

    @property
    def certificate(self) -> Certificate:
        """The best that is proved: by the intervals of the action values, or by relative bounds."""
        found = certificate(self.intervals[None])
        proved = None if self.rounds is None else self.rounds.proved
        return found if proved is None or found.gap <= proved.gap else proved

    @property
    def estimates(self) -> Floats:
        """Estimates of the root's action values, within their intervals, [K]."""
        intervals = self.intervals
        middles = intervals.mean(axis=1)
        if self.rounds is not None and len(self.rounds.differences):
            middles = middles.mean() + self.rounds.differences
        return np.asarray(np.clip(middles, intervals[:, 0], intervals[:, 1]))

    @property
    def span(self) -> tuple[float, float]:
        """What is known of all values before the first sample."""
        return float(self.rules.span_low[0]), float(self.rules.span_high[0])

    @property
    def exponent(self) -> float:
        """ξ, where the gap falls about like calls^(−ξ); ½ where it is not known."""
        return 0.5 if self.rounds is None else self.rounds.exponent

    @property
    def holding(self) -> list[tuple[int, int, float]]:
        """The pairs that hold up the gap, by the number of the state and the action, and their share of it."""
        held = () if self.rounds is None else self.rounds.holding
        return [(*divmod(entry, self.rules.actions), share) for entry, share in held]

    def _require_possible(self) -> None:
        """Compares what sweeps have proved of every value with what the model declares of values."""
        assert self.rounds is not None
        low, high = self.rounds.values
        for number in (int(np.argmax(low)), int(np.argmin(high))):
            proved = float(low[number]), float(high[number])
            curvature.require_possible(self.oracle.model, self._backup, proved, self.state(number))

    def _sample_all(self, entries: Ints, counts: Ints) -> None:
        """Samples pairs [p], each so often, and updates their confidence sets."""
        calls = self.oracle.calls
        states, actions = entries // self.rules.actions, entries % self.rules.actions
        if self._known is None:
            chunk = self._next_chunk()
            keys, rewards, times = drawn(
                self._tables, self.graph.keys[states] * self.rules.actions + actions, counts, self.oracle.seed, chunk
            )
            self.oracle.stream[CALLS] += np.uint64(counts.sum())
            self._spend(counts)
            rows, columns = np.nonzero(times)
            found = keys[rows, columns]
            self._take(entries[rows], self._numbered(found), rewards[rows, columns], times[rows, columns])
            return
        known = np.asarray(self._known.states)
        pieces: list[slice] = []

        def batches() -> Iterator[Batch]:
            for piece, part in chunked(counts, calls):
                pieces.append(piece)
                yield self._next_chunk(), known[states[piece]], actions[piece], part

        for number, (batch, sampled) in enumerate(self.draw(batches())):
            part = batch[3]
            self.oracle.stream[CALLS] += np.uint64(part.sum())
            self._spend(part)
            numbers = np.array(
                [
                    ENDED if end else self.number(state)
                    for state, end in zip(sampled.states, sampled.terminals, strict=True)
                ]
            )
            rows = np.repeat(entries[pieces[number]], part)
            self._take(*sampled.outcomes(rows, numbers))

    def _spend(self, counts: Ints) -> None:
        """Charges the calls of a round to the two root actions that it compares."""
        found = self.certificate
        total = int(counts.sum())
        self.graph.spent[found.best] += total - total // 2
        self.graph.spent[found.challenger] += total // 2

    def _next_chunk(self) -> int:
        self.graph.totals[CHUNKS] += 1
        return int(self.graph.totals[CHUNKS])  # chunk 0 is that of walks

    def _draw_here(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Sampled]]:
        """Calls the simulator in this thread."""
        sampler = PairSampler()
        for batch in batches:
            oracle = Oracle(self.oracle.model, self.oracle.seed, batch[0])
            try:
                sampled = sampler.pairs(oracle, None, *batch[1:])
            except BaseException:  # calls that failed were made too
                self.oracle.stream[CALLS] += np.uint64(oracle.calls)
                raise
            yield batch, sampled

    def _numbered(self, keys: Ints) -> Ints:
        """The numbers of successors of a table [n], which are new or known."""
        numbers = np.zeros(len(keys), dtype=np.int64)
        done = 0
        while (done := discover_all(self.graph, self.rules, keys, numbers, done)) < len(keys):
            self._grow()
        return numbers

    def _take(self, entries: Ints, successors: Ints, rewards: Floats, times: Ints) -> None:
        """Records outcomes [n], those of a pair together, each so often."""
        outcomes, done = (entries, successors, rewards, times), 0
        while (done := bounds.record_all(self.graph, self.rules, *outcomes, self.work.room, done)) < len(entries):
            if done < 0:
                raise self._broken()
            self._grow(1, int(entries[done]))

    # The loop

    def explore(self, epsilon: float, until: int, rounds: int, limit: int | None = None) -> bool:
        """Samples along walks; whether the intervals at the root leave a gap within ε.

        Args:
            epsilon: ε.
            until: no walk begins after this many simulator calls in all.
            rounds: the largest number of walks.
            limit: no call is made after this many in all; `until` by default. It lets a trajectory end where it would.

        Raises:
            ModelError: the model broke the bound on successors, or a reward declared deterministic varies.
        """
        limit = until if limit is None else limit
        turn = self._begin(start=-1, until=min(until, limit))
        turn["epsilon"], turn["limit"], turn["rounds"] = epsilon, limit, rounds
        return self._proceed(None) == loop.CONVERGED

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
        self._proceed(frozen(np.ascontiguousarray(q).view()))

    def _begin(self, start: int, until: int) -> Any:
        """A new turn: whatever an interrupted one has left behind is forgotten."""
        self._turn[:] = np.zeros(1, dtype=loop.TURN)
        self._turn["start"], self._turn["until"] = start, until
        return self._turn

    def _proceed(self, q: Floats | None) -> int:
        """Select, sample, absorb: all in compiled code on a table; otherwise the samples are made here."""
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
                self._grow(min(int(self._turn[0]["count"]), self._tables.width), int(self._turn[0]["entry"]))
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
        entries = np.full(count, turn["entry"])
        self._take(entries, successors, transition.rewards, np.ones(count, dtype=np.int64))
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
            two_rewards = self.rules.kind == BY_OUTCOME and not self.rules.one_successor
            most = self.rules.bound // 2 if two_rewards else self.rules.bound
            return ModelError(
                f"more than {most} different next states at {where}: declare a larger max_successors, or "
                f"give the planner a larger bound on successors"
            )
        advice = "declare reward_kind='bounded', or give the planner rewards='bounded'"
        if self.rules.kind == BY_OUTCOME:
            return ModelError(
                f"a reward declared as fixed by the transition took two values for the same next state at {where}: "
                f"{advice}"
            )
        return ModelError(
            f"a reward declared deterministic was {self.graph.pairs[entry]['reward_low']:g}, then another, at {where}: "
            f"{advice}"
        )

    def tighten(self) -> None:
        """Propagates bounds once through everything that was discovered."""
        backup = None if self._callback is None else self._callback.function
        bounds.sweep_once(self.graph, self.rules, self.work.frames, self.work.room, backup)
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
        """Memory of what was discovered, a simulator's states and keys included; no room for outcomes to come.

        A restored search has other room for outcomes.
        """
        graph = self.graph
        outcomes = int(graph.pairs["seen"].sum())
        by_outcome = {"successors": outcomes, "hits": outcomes, "rewards": outcomes * (self.rules.kind == BY_OUTCOME)}
        arrays = sum(array.itemsize * by_outcome.get(name, array.size) for name, array in graph._asdict().items())
        return int(arrays) + (0 if self._known is None else self._known.bytes)

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
            return int(self._numbered(np.array([state]))[0])
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
        return int(self._numbered(np.array([number]))[0])

    def _grow(self, more: int = 1, entry: int | None = None) -> None:
        """More room: for so many states, and as many more outcomes of a pair, where it is short."""
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
        """Everything that the search depends on from here, between two rounds of it, as arrays of its own."""
        states = {"keys": np.array(self.states)} if self._known is None else self._known.saved()
        rounds = {} if self.rounds is None else self.rounds.saved()
        return saving.oracle_arrays(self.oracle) | saving.graph_arrays(self.graph, self.rules) | states | rounds

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
        if self.rounds is not None:
            self.rounds.restore(arrays, graph, self.rules)
        self.graph, self._known, self._weights = graph, known, weights
        widest = int(graph.pairs["seen"].max(initial=0))
        if widest > self.work.room.shape[1]:
            self.work = self.work._replace(room=np.zeros((4, 2 * widest)))
        if self._mixture is not None:
            self._use_weights()
        saving.set_streams(self.oracle, streams)
