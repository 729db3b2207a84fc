"""OT-GapE (the paper, section 8) and MDP-GapE (Jonsson et al., 2020): the best action by confidence bounds.

They keep an interval for the value of every discovered state, and look for the root action that is ε-optimal with
probability 1 − δ: by walks while these discover much, by rounds of samples once states recur.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.records import Arrays, Readable
from smoothplan.bounds.rounds import BestAction, Rounds, best_action, root_intervals
from smoothplan.graph.explorer import Draw, Explorer, Key, PairSampler, pooled, required_key, searched_table
from smoothplan.graph.graph import ENDED, Graph, Rules, rules_of, spans, successor_bound
from smoothplan.models.derived import split_stages
from smoothplan.models.model import Oracle, action_names, declared_values, horizon_of
from smoothplan.run.chunks import Work
from smoothplan.run.progress import Bottleneck, Display, GapProgress
from smoothplan.run.records import GapDetails, History, Root, Snapshot, Status
from smoothplan.run.workers import SLICE_CALLS, Workers
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, is_mixture, required_backup


@dataclass(frozen=True)
class OTGapE:
    """Best-action identification by bounds that are propagated through a monotone backup.

    Every state that is discovered keeps an interval for its value. While many pairs are new, UGapE chooses a root
    action, and a walk by ∇F of the upper bounds leads from there to the pair whose sample helps most. Once states
    recur, a round samples many pairs at once. Whenever the run stops, all intervals are valid at once, and so is the
    gap of the result's details, which may be smaller than that between the intervals: differences may be known better
    than values.

    Args:
        backup: F.
        epsilon: the action returned is this close to optimal; 0 for a run until the best action is proved or a limit
            is reached.
        delta: the probability that any interval fails.
        sampling: "focused" walks on the empirical model and samples the pair whose own uncertainty matters most, with
            some trajectories in between, and samples many pairs in rounds if states recur; "trajectories" samples
            along the way only, as printed.
        walk: "soft" by ∇F(U), "greedy" by argmax U, or ζ in [0, 1]: soft with probability ζ.
        horizon: None for the value of the model, with the model's own horizon if it has one. A number of stages, told
            apart as printed, is for models without a horizon.
        tail: the values after the last stage: "honest", anything that the discounted value may be; or "zero", as
            printed, which is the same search as that of `finite_horizon(model, horizon)` with `horizon=None`.
        counts: "pooled" over stages, or "stage-wise", as printed.
        successors: a bound on the different next states of one (s, a); the model's own by default. None is needed: it
            helps if it is 1 or 2, and once all next states of a pair were seen.
        key: identifies a state, a function from a state to something hashable; by default the state itself. States
            with the same key must behave alike, or nothing is proved. With a key, or a backup that depends on the
            state, stages of a model from `finite_horizon` do not share their samples.
    """

    backup: Backup
    epsilon: float
    delta: float = 0.1
    sampling: Literal["focused", "trajectories"] = "focused"
    walk: Literal["soft", "greedy"] | float = "soft"
    horizon: int | None = None
    tail: Literal["honest", "zero"] = "honest"
    counts: Literal["pooled", "stage-wise"] = "pooled"
    successors: int | None = None
    key: Key | None = None

    no_forecast: ClassVar[str] = "its price depends on the gaps between the actions, which only the run reveals"

    def __post_init__(self) -> None:
        required_backup(self.backup)
        object.__setattr__(self, "epsilon", arguments.bounded("epsilon", self.epsilon))
        object.__setattr__(self, "delta", arguments.failure(self.delta))
        arguments.one_of("sampling", self.sampling, "focused", "trajectories")
        arguments.one_of("tail", self.tail, "honest", "zero")
        arguments.one_of("counts", self.counts, "pooled", "stage-wise")
        if not isinstance(self.walk, str):
            arguments.number("walk", self.walk, least=0.0, most=1.0)
        elif self.walk not in ("soft", "greedy"):
            raise ValueError(f"walk must be 'soft', 'greedy' or a number in [0, 1], got {self.walk!r}")
        if self.horizon is not None:
            most = 100_000  # every state has bounds at each stage
            object.__setattr__(self, "horizon", arguments.whole("horizon", self.horizon, most=most))
        elif self.tail == "zero" or self.counts == "stage-wise":
            name = "tail" if self.tail == "zero" else "counts"
            raise ValueError(f"{name}={getattr(self, name)!r} needs a horizon, got horizon=None")
        if self.successors is not None:
            object.__setattr__(self, "successors", successor_bound("successors", self.successors))
        required_key(self.key)

    def start(self, root: Root, explorer: Explorer | None = None) -> "SearchRun":
        """A search that knows nothing but the root; or one that goes on with the graph of an explorer.

        That may be the one of a `SharedReference` of the same model, backup and δ. Its rules replace the planner's own.
        """
        curvature.require_rewards(root.model, "a search by bounds")
        model, state, horizon, tail, discount = root.model, root.state, self.horizon, self.tail, root.model.discount
        if getattr(model, "stationary", None) is not None and horizon is not None:
            raise ValueError(f"horizon must be None for a model with one of {horizon_of(model)}, got {horizon}")
        stationary = pooled(model, self.backup, self.key)
        if stationary is not None and (explorer is None or explorer.oracle.model is stationary):
            # The steps left are stages: samples of the model as it was count at all of them.
            states, left = split_stages(model, np.asarray(state)[None])
            model, state, horizon, tail = stationary, states[0], int(left[0]), "zero"
        if root.max_calls is None and root.max_seconds is None:  # a run that might go on for ever is refused
            if self.epsilon == 0.0:
                raise ValueError("epsilon must be greater than 0 unless max_calls or max_seconds is given, got 0")
            curvature.require_resolvable(self.epsilon, curvature.value_interval(root.model, self.backup))
            last = (0.0, 0.0) if horizon is None else spans(model, self.backup, horizon, tail, discount)[-1]
            if (beyond := discount ** (horizon or 0) * float(np.ptp(last))) >= self.epsilon:
                raise ValueError(
                    f"horizon must be longer unless max_calls or max_seconds is given, got {horizon}: values "
                    f"beyond it may differ by {beyond:.2g}, and epsilon={self.epsilon:g} may never be reached"
                )
        if explorer is None:
            rules = rules_of(model, self.backup, self.delta, self.successors, horizon, tail, discount)._replace(
                records=horizon if horizon and self.counts == "stage-wise" else 1,
                soft_share={"soft": 1.0, "greedy": 0.0}[self.walk] if isinstance(self.walk, str) else float(self.walk),
                focused=self.sampling == "focused",
            )
            table = searched_table(replace(root, model=model), self.key, self.backup)
            explorer = Explorer(rules, Oracle(model, root.seed), self.backup, state, table, self.key)
        elif explorer.oracle.model is not model or explorer.rules.log_odds != -math.log(self.delta):
            known, delta = type(explorer.oracle.model).__name__, math.exp(-explorer.rules.log_odds)
            raise ValueError(
                f"explorer must be of the root's own model and of delta={self.delta:g}, got one of a {known} and of "
                f"delta={delta:g}"
            )
        elif horizon is not None and (steps := explorer.rules.stages - explorer.rules.first) != horizon:
            raise ValueError(f"explorer must be of a root with {horizon} steps left, got one with {steps}")
        return SearchRun(explorer, root, self.epsilon, self.delta)


@dataclass(frozen=True)
class MDPGapE(OTGapE):
    """The hard-max case of `OTGapE`, whose walk is greedy (Jonsson et al., 2020).

    Args:
        backup: the hard maximum.
        epsilon, delta, sampling, horizon, tail, counts, successors, key: as for `OTGapE`.
    """

    backup: Backup = field(default_factory=HardMax)
    epsilon: float = field(kw_only=True)
    walk: Literal["soft", "greedy"] | float = "greedy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_mixture(self.backup) or self.backup.temperature != 0.0:
            raise ValueError(f"MDPGapE is for the hard maximum, got {self.backup!r}: use OTGapE")


class SearchRun:
    """A search for an action that is ε-optimal with probability 1 − δ. Its proofs hold whenever it stops.

    The explorer's graph may have been explored before. δ is that of its rules.
    """

    def __init__(self, explorer: Explorer, root: Root, epsilon: float, delta: float) -> None:
        self.explorer, self._root = explorer, root
        self.epsilon, self.delta = epsilon, delta
        self._history = History()
        self.rounds = Rounds(explorer)
        self._declares_values = declared_values(root.model) is not None and explorer.rules.endless
        self._looked = 1  # calls when walks last compared the graph with the horizon

    def run(self, workers: Workers, display: Display) -> Status:
        """Searches until the gap is within ε or a limit is reached."""
        return "converged" if self.search(self._root.max_calls, workers, display) else "max_calls"

    def search(self, max_calls: int | None, workers: Workers, display: Display) -> bool:
        """Searches until the gap is within ε or a number of calls is made; returns whether it is.

        Walks build on each other, so one worker makes them. The chunks of a round are drawn by all workers, and threads
        of this process sweep its bounds.
        """
        root, oracle, threads = self._root, self.explorer.oracle, workers.threads
        work = Work(PairSampler(), oracle.model, root.state, root.seed, kept=False, role=oracle.role)

        def shown(chunks: Iterable[Any]) -> Iterator[Any]:
            for found in workers.in_order(work, chunks):
                yield found
                display.update(self.calls, self.interval, self.progress)

        def explore(until: int, limit: int) -> tuple[int, bool]:
            converged = self.explore(until, limit, shown if display.shown else partial(workers.in_order, work), threads)
            if display.shown:
                display.update(self.calls, self.interval, self.progress)
            return self.calls, converged

        return workers.in_slices(self, explore, max_calls)

    def explore(self, until: int, limit: int, draw: Draw, threads: int = 1) -> bool:
        """Makes walks, or one round whose simulator calls `draw` makes; returns whether the gap is within ε.

        No walk begins after `until` calls in all, and no call is made after `limit`. Threads sweep bounds.
        """
        converged = self._round(limit, draw, threads)
        if converged is None:
            converged = self.explorer.explore(self.epsilon, until, SLICE_CALLS, limit)
            if converged or self.calls >= min(limit, 2 * self._looked):
                self.explorer.order()  # raises if an episode was seen to be longer than the horizon
                self._looked = self.calls
        self._history.add(self.calls, root_intervals(self.explorer))
        return converged

    def _round(self, limit: int, draw: Draw, threads: int) -> bool | None:
        """A round of samples; None if walks are better."""
        rounds = self.rounds
        if not rounds.take_over(self.calls):
            if self._declares_values and rounds.compare_now(self.calls):
                rounds.sweep(self.epsilon, threads)
                self._require_possible()
            return None
        brackets = rounds.tighten(self.epsilon, threads)
        self._require_possible()
        best, challenger, gap = self.proved
        if gap <= self.epsilon:
            return True
        if self.calls >= limit:
            return False
        counts = rounds.counts(brackets, gap, self.epsilon, limit - self.calls)
        if not counts.any():  # no sample helps: the actions are tied for certain
            return None
        self.explorer.sample_pairs(np.flatnonzero(counts), counts[counts > 0], (best, challenger), draw)
        self.explorer.graph.totals[0]["rounds"] += 1
        return False

    def _require_possible(self) -> None:
        """Compares the bounds of every value with the range that the model declares, if it does."""
        explorer, (low, high) = self.explorer, self.rounds.values
        for number in (int(np.argmax(low)), int(np.argmin(high))) if self._declares_values else ():
            proved = float(low[number]), float(high[number])
            curvature.require_possible(self._root.model, explorer.backup, proved, explorer.state(number))

    # Results

    @property
    def calls(self) -> int:
        """Simulator calls made."""
        return self.explorer.oracle.calls

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the root's value."""
        graph, first = self.explorer.graph, self.explorer.rules.first
        return float(graph.low[first]), float(graph.high[first])

    @property
    def proved(self) -> BestAction:
        """The best proof: by the intervals of the action values, or by relative bounds."""
        found = best_action(root_intervals(self.explorer)[None])
        return found if found.gap <= self.rounds.proved.gap else self.rounds.proved

    @property
    def progress(self) -> GapProgress:
        """How far the identification of the best action is."""
        explorer, rounds, proved = self.explorer, self.rounds, self.proved
        price = None
        if self.calls > 0 and 0.0 < self.epsilon < proved.gap:
            with suppress(OverflowError):  # more than a float can count: no estimate
                decay = (math.log(proved.gap) - math.log(self.epsilon)) / rounds.exponent
                price = math.exp(math.log(self.calls) + decay)
        names, pairs = action_names(self._root.model), [(int(entry), share) for entry, share in rounds.bottlenecks]
        bottlenecks = tuple(
            Bottleneck(explorer.state(entry // len(names)), entry % len(names), float(share), names[entry % len(names)])
            for entry, share in pairs
        )
        fraction = proved.gap / rounds.width if rounds.width > 0.0 else 0.0
        return GapProgress(proved.gap, fraction, price, proved is rounds.proved, bottlenecks)

    def result(self) -> Snapshot:
        """The middles of the intervals, and the action that is proved to be the closest to optimal."""
        explorer, totals, intervals = self.explorer, self.explorer.graph.totals[0], root_intervals(self.explorer)
        best, challenger, gap = self.proved
        q = intervals.mean(axis=1)
        if len(self.rounds.differences):
            q = q[q > -np.inf].mean() + self.rounds.differences
        return Snapshot(
            value=sum(self.interval) / 2.0,
            interval=self.interval,
            action=best,
            q=np.clip(q, intervals[:, 0], intervals[:, 1]),
            q_intervals=intervals,
            calls=self.calls,
            samples=int(explorer.graph.pairs["count"][: self._root.model.actions].sum()),  # of the root's own pairs
            epsilon=self.epsilon,
            delta=self.delta,
            details=GapDetails(
                gap=gap,
                challenger=challenger if len(intervals) > 1 else None,
                action_calls=explorer.graph.spent.copy(),
                rounds=int(totals["rounds"]),
                history=self._history.until(self.calls, intervals),
                states=int(totals["states"]),
                pairs=int(totals["pairs"]),
                bytes=explorer.bytes,
                graph=explored(explorer, gap),
                progress=self.progress,
            ),
        )

    # Checkpoints

    def saved(self) -> Arrays:
        """The search as arrays, between two calls of `explore`."""
        return self.explorer.saved() | self.rounds.saved() | self._history.saved()

    def restore(self, arrays: Readable) -> None:
        """Takes on the search that was saved."""
        self.explorer.restore(arrays)
        self.rounds.restore(arrays)
        self._history.restore(arrays)


@dataclass(frozen=True, eq=False, repr=False)
class Explored:
    """A snapshot of a search, as JSON or as text for Graphviz. Later samples do not change it."""

    states: Ints | tuple[Any, ...]  # in the order of their discovery; the root is first
    graph: Graph  # counts and intervals, read-only
    rules: Rules
    gap: float  # no action is better than the best one by more
    calls: int
    state_names: tuple[str, ...] | None  # by the state itself, if states are numbers
    action_names: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"Explored({len(self.states)} states, {self.graph.totals[0]['pairs']} pairs, {self.calls} calls)"

    @cached_property
    def intervals(self) -> Floats:
        """Intervals of the values of N states at H stages, [N, H, 2]."""
        return self._stacked(self.graph.low, self.graph.high)

    @cached_property
    def q(self) -> Floats:
        """Intervals of the action values, [N, H, K, 2]."""
        return self._stacked(self.graph.q_low, self.graph.q_high, self.rules.actions)

    def _stacked(self, low: Floats, high: Floats, *columns: int) -> Floats:
        shape = len(self.states), self.rules.stages, *columns
        return np.stack([low[: math.prod(shape)], high[: math.prod(shape)]], axis=-1).reshape(*shape, 2)

    @cached_property
    def _reached(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The states that successors lead to, the nearest to the root first, and the pairs that were sampled there."""
        rules, names = self.rules, self.state_names or ()
        states, pairs = list[dict[str, Any]](), list[dict[str, Any]]()
        known, latest, depth = {(0, rules.first)}, [(0, rules.first)], 0
        while latest:
            found = set[tuple[int, int]]()
            for number, stage in latest:
                state, inside = np.asarray(self.states[number]), stage < rules.stages
                is_named = not state.shape and state.dtype.kind in "iu" and 0 <= state < len(names)
                ends = self.intervals[number, stage] if inside else np.array([rules.span_low[-1], rules.span_high[-1]])
                fields = {"number": number, "stage": stage, "depth": depth, "interval": ends.tolist()}
                states.append(fields | {"state": state.tolist(), "name": names[int(state)] if is_named else None})
                for pair in self._sampled(number, stage) if inside else ():
                    pairs.append(pair)
                    after = [seen["state"] for seen in pair["successors"] if seen["state"] != "end"]
                    found.update((successor, 0 if rules.endless else stage + 1) for successor in after)
            latest, depth = sorted(found - known), depth + 1
            known |= found
        return states, pairs

    def _sampled(self, number: int, stage: int) -> Iterator[dict[str, Any]]:
        """The pairs that were sampled at a state. Pooled counts are those of the state at any stage."""
        graph, rules = self.graph, self.rules
        for action in range(rules.actions):
            record = number * rules.records + min(stage, rules.records - 1)
            pair, hits = graph.pairs[record * rules.actions + action], Counter[int | str]()
            for outcome in range(pair["start"], pair["start"] + pair["seen"]):  # some differ in rewards only
                successor = int(graph.successors[outcome])
                hits["end" if successor == ENDED else successor] += int(graph.hits[outcome])
            if hits:
                yield {
                    "state": number,
                    "stage": stage,
                    "action": action,
                    "name": None if self.action_names is None else self.action_names[action],
                    "count": hits.total(),
                    "reward": [float(pair["reward_low"]), float(pair["reward_high"])],
                    "q": self.q[number, stage, action].tolist(),
                    "successors": [{"state": after, "count": seen} for after, seen in hits.items()],
                }

    def to_json(self) -> str:
        """One JSON object: the states that were reached, and the pairs that were sampled there.

        Lists of two numbers are intervals. States are referred to by their `number`; with a finite horizon a successor
        is at the stage after that of the pair, and otherwise all stages are 0.
        """
        found = {
            "horizon": None if self.rules.endless else self.rules.stages,
            "discount": float(self.rules.discount),
            "calls": self.calls,
            "gap": self.gap,
            "q_intervals": self.q[0, self.rules.first].tolist(),
            "states_discovered": len(self.states),
            "pairs_sampled": int(self.graph.totals[0]["pairs"]),
            "states": self._reached[0],
            "pairs": self._reached[1],
        }
        return json.dumps(found, allow_nan=False, default=str)

    def to_dot(self, limit: int = 60) -> str:
        """Graphviz text with the `limit` states, or states at stages, that are nearest to the root.

        Boxes are warmer the wider their intervals are; lines are thicker the more samples they stand for.
        """
        states, pairs = self._reached
        shown = states[: arguments.whole("limit", limit)]
        names = {(state["number"], state["stage"]): f"s{place}" for place, state in enumerate(shown)}
        left, most = len(states) - len(shown), max(int(self.graph.pairs["count"].max()), 2)
        extent = f"the {len(shown)} nearest nodes; {left} more" if left else "all nodes"
        lines = [
            "digraph explored {",
            f"  graph [rankdir=LR, labelloc=t, label={_quoted(f'{self!r}: gap {self.gap:.4g}, {extent}')}];",
            '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11];',
            '  edge [fontname="Helvetica", fontsize=9, arrowsize=0.6];',
            "  end [shape=doublecircle, style=solid];",
            '  others [shape=plaintext, style=solid, label="not shown"];',
        ]
        span = max(float(self.rules.span_high[0] - self.rules.span_low[0]), 1e-300)
        for state, name in zip(shown, names.values(), strict=True):
            low, high = state["interval"]
            hue = 0.6 - 0.6 * min((high - low) / span, 1.0) ** 0.25  # from blue to red
            step = f"{'step' if self.rules.endless else 'stage'} {state['depth']}"
            label = _quoted((state["name"] or str(state["state"]))[:60], step, f"[{low:.3g}, {high:.3g}]")
            lines.append(f'  {name} [label={label}, fillcolor="{hue:.3f} 0.35 1.0"];')
        for pair in pairs:
            source, later = names.get((pair["state"], pair["stage"])), 0 if self.rules.endless else pair["stage"] + 1
            targets, action = Counter[str](), pair["name"] or f"action {pair['action']}"
            for seen in pair["successors"] if source else ():
                known = "end" if seen["state"] == "end" else names.get((seen["state"], later), "others")
                targets[known] += seen["count"]
            for target, seen in targets.items():
                label, width = _quoted(f"{action[:40]} ×{seen}"), 1.0 + 4.0 * math.log(seen) / math.log(most)
                lines.append(f"  {source} -> {target} [label={label}, penwidth={width:.2f}];")
        return "\n".join([*lines, "}"])


def _quoted(*lines: str) -> str:
    """A string of Graphviz, which knows backslashes and entities of HTML; unprintable characters are replaced."""
    texts = (
        "".join(letter if letter.isprintable() else "\ufffd" for letter in " ".join(line.split())) for line in lines
    )
    escaped = (text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return '"' + "\\n".join(escaped) + '"'


def explored(explorer: Explorer, gap: float) -> Explored:
    """A snapshot of a search that has proved a gap."""
    model, graph = explorer.oracle.model, Graph(*(frozen(array.copy()) for array in explorer.graph))
    names = (getattr(model, name, None) for name in ("state_names", "action_names"))
    return Explored(explorer.states, graph, explorer.rules, gap, explorer.oracle.calls, *names)
