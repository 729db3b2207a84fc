"""OT-GapE and MDP-GapE: intervals that hold at once however a run ends, actions as good as promised, prices."""

import json
import math
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import binom

import smoothplan as sp
from smoothplan.bounds.gape import MDPGapE, OTGapE, SearchRun, explored
from smoothplan.graph import sets
from smoothplan.graph.explorer import Draw, Explorer
from smoothplan.models.model import States
from smoothplan.run.records import EngineName, Root
from smoothplan.theory.backups import Backup, discrete_cost
from tests.adversarial import ADVERSARIAL, all_hold, tight
from tests.common import begun, bounded, by_state, content, ending, holds, identified, intervals_of, tied

SURE = 1e-7
"""A δ at which no interval of a few hundred fails."""

FALSE_ALARM = 1e-9
"""The probability that a check of coverage complains of intervals that fail with probability δ."""

HARD = sp.HardMax()


def garnet(
    seed: int = 0, states: int = 6, actions: int = 2, branching: int = 2, discount: float = 0.5, kind: Any = "bernoulli"
) -> sp.TabularModel:
    return sp.models.garnet(states, actions, branching, discount, seed, reward_kind=kind)


# The check of coverage


class Case(NamedTuple):
    """A run to be."""

    planner: OTGapE
    model: sp.TabularModel
    max_calls: int | None


def covered(cases: Sequence[Case]) -> bool:
    """Runs every case with a seed of its own, and says whether no more of them miss the truth than may.

    False with probability `FALSE_ALARM` at most, if every run fails with probability `DELTA` at most.
    """
    verdicts = []
    for seed, (planner, model, max_calls) in enumerate(cases):
        result = sp.plan(planner, model, 0, seed=seed, max_calls=max_calls)
        if max_calls is None:
            assert result.status == "converged"
            assert identified(result).gap <= planner.epsilon
        verdicts.append(holds(result, model, planner.backup))
    return bool(binom.sf(verdicts.count(False) - 1, len(verdicts), DELTA) >= FALSE_ALARM)


DELTA = 0.3
"""A large δ: what fails too often fails visibly."""


def small_models() -> list[sp.TabularModel]:
    """Garnets of 4 to 8 states with rewards of 0 or 1, and models with bounded rewards that end."""
    sizes = list(product((4, 6, 8), (2, 3), (2, 3)))
    models = [garnet(i, *size, discount=0.4 + 0.05 * (i % 5)) for i, size in enumerate(sizes)]
    return models + [ending(size[1], 0.4 + 0.05 * (i % 5), i, (-3.0, 7.0)) for i, size in enumerate(sizes)]


def small_cases(epsilon: float, budgets: tuple[int | None, ...]) -> list[Case]:
    cases = []
    for model in small_models():
        width = model.reward_range[1] - model.reward_range[0]
        transport = sp.OptimalTransport(cost=discrete_cost(model.actions), tau=width, lam=0.05)
        choices: list[Backup] = [HARD, sp.LogSumExp(0.1 * width), transport, by_state(model)]
        for backup, sampling, budget in product(choices, ("focused", "trajectories"), budgets):
            planner = OTGapE(backup, epsilon * width, DELTA, sampling=sampling)  # type: ignore[arg-type]
            cases.append(Case(planner, model, budget))
    return cases


def test_all_intervals_hold_wherever_a_run_stops() -> None:
    """24 small models, four backups, both ways to sample, two limits on calls: every third of 384 runs."""
    cases = small_cases(0.0, (20, 300))
    assert len(cases) == 384
    assert covered(cases[::3])


def test_a_run_that_converges_returns_an_optimal_action_but_for_epsilon() -> None:
    assert covered(small_cases(0.3, (None,))[::3])


def bandit(actions: int = 100, chance: float = 0.5) -> sp.TabularModel:
    """A coin for each action, all alike: every pair must hold, or an interval of the root fails."""
    shape = (1, actions, 1)
    tables = np.ones(shape), np.zeros(shape, dtype=np.int64), np.full(shape[:2], chance)
    return sp.TabularModel(*tables, discount=0.0, reward_kind="bernoulli")


def lottery(actions: int = 40, chance: float = 0.05) -> sp.TabularModel:
    """Each action wins with a small chance: a reward of 1 at the next step, and the end."""
    probabilities, successors = np.tile([chance, 1.0 - chance], (3, actions, 1)), np.tile([1, 2], (3, actions, 1))
    probabilities[1:] = [1.0, 0.0]
    rewards, ends = np.zeros((3, actions)), np.zeros((3, actions, 2), dtype=np.bool_)
    rewards[1] = 1.0
    ends[1:, :, 0] = True
    return sp.TabularModel(probabilities, successors, rewards, discount=0.9, terminal=ends)


class ForgetfulRun(SearchRun):
    """A search in which every pair spends δ as if it were the only one: there is no union over pairs."""

    def explore(self, until: int, limit: int, draw: Draw, threads: int = 1) -> bool:
        explorer = self.explorer
        while self.calls < until:
            if super().explore(self.calls + 1, limit, draw, threads):
                return True
            odds, sampled = explorer.graph.pairs["log_odds"], explorer.graph.pairs["count"] > 0
            for entry in np.flatnonzero(sampled & (odds > explorer.rules.log_odds)):
                odds[entry] = explorer.rules.log_odds
                sets.refresh(explorer.graph, explorer.rules, int(entry))
        return False


class Forgetful(OTGapE):
    """OT-GapE without a union over pairs: the negative control of tests of coverage."""

    def start(self, root: Root, explorer: Explorer | None = None) -> SearchRun:
        return ForgetfulRun(super().start(root, explorer).explorer, root, self.epsilon, self.delta)


HOSTILE: dict[str, tuple[sp.TabularModel, int]] = {
    "many rewards": (bandit(60), 1200),
    "rare transitions": (lottery(), 1200),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_models_do_not_break_the_intervals(name: str) -> None:
    """The same check notices a union that is missing: more than three quarters of the runs fail, where 30 % may."""
    model, calls = HOSTILE[name]
    assert covered([Case(OTGapE(HARD, 0.0, DELTA), model, calls)] * 40)
    assert not covered([Case(Forgetful(HARD, 0.0, DELTA), model, calls)] * 40)


def too_many(misses: int, runs: int) -> bool:
    """Whether so many runs miss the truth with probability 1e-6 at most, if each does with probability `DELTA`."""
    return bool(binom.sf(misses - 1, runs, DELTA) < 1e-6)


@pytest.mark.parametrize("name", ADVERSARIAL)
@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.full)])
def test_coverage_on_recurrent_models(name: str, full: bool) -> None:
    """In few runs on random models of a family does a bound of any discovered state miss the truth.

    Runs take turns in what they know of rewards; every other one of each declares the narrowest value range.
    """
    runs, calls = (200, 5_000) if full else (40, 2_500) if name == "lotteries" else (30, 1_500)
    misses = 0
    for seed in range(runs):
        model = ADVERSARIAL[name](seed)
        solution = sp.exact.solve(model, HARD, 1e-10)
        turn, kind = divmod(seed, 2)
        known = model if kind == 0 else bounded(model)
        known = known if turn % 2 == 0 else tight(known, solution)
        try:
            misses += not all_hold(sp.plan(OTGapE(HARD, 0.0, DELTA), known, 0, seed=seed, max_calls=calls), solution)
        except sp.ModelError:  # bounds that miss the truth refute a value range that is right
            misses += 1
    assert not too_many(misses, runs)


# Equivalences


def fields(planner: OTGapE, engine: EngineName = "auto", max_calls: int = 1500) -> dict[str, Any]:
    return content(sp.plan(planner, garnet(3, states=40, actions=3), 0, seed=4, max_calls=max_calls, engine=engine))


@pytest.mark.parametrize("engine", ["compiled", "batched"])
@pytest.mark.parametrize("sampling", ["focused", "trajectories"])
def test_mdp_gape_is_the_hard_maximum(engine: EngineName, sampling: Any) -> None:
    calls = 1500 if engine == "compiled" else 300
    mdp = fields(MDPGapE(epsilon=0.05, sampling=sampling), engine, calls)
    assert mdp == fields(OTGapE(HARD, 0.05, sampling=sampling, walk="greedy"), engine, calls)
    assert mdp == fields(OTGapE(HARD, 0.05, sampling=sampling, walk="soft"), engine, calls)  # ∇max is greedy


@pytest.mark.parametrize("engine", ["compiled", "batched"])
def test_a_mixed_walk_has_both_ends(engine: EngineName) -> None:
    planner, calls = OTGapE(sp.LogSumExp(0.5), 0.05), 1500 if engine == "compiled" else 300
    walks = {walk: fields(replace(planner, walk=walk), engine, calls) for walk in ("soft", "greedy", 0.0, 0.5, 1.0)}
    assert walks[0.0] == walks["greedy"] != walks[0.5]
    assert walks[1.0] == walks["soft"] != walks[0.5]
    assert walks["soft"] != walks["greedy"]


# Extreme models


@pytest.mark.parametrize("engine", ["compiled", "batched"])
@pytest.mark.parametrize("sampling", ["focused", "trajectories"])
@pytest.mark.parametrize("discount", [0.0, 0.5, 0.9])
def test_deterministic_models(engine: EngineName, sampling: Any, discount: float) -> None:
    """Where nothing is random the search ends, also where it has nothing left to learn: tied actions, ε = 0."""
    for backup in (HARD, sp.LogSumExp(0.3)):
        for seed in range(2):
            model = garnet(seed, states=5, branching=1, discount=discount, kind="deterministic")
            for problem in (model, tied(model)):
                planner = OTGapE(backup, 0.0, SURE, sampling=sampling)
                result = sp.plan(planner, problem, max_calls=30, engine=engine)
                assert result.status == "converged" or result.calls == 30
                assert holds(result, problem, backup)
                if discount <= 0.5:
                    close = sp.plan(replace(planner, epsilon=1e-3), problem, engine=engine)
                    assert close.status == "converged"
                    assert close.calls < 200
                    assert holds(close, problem, backup)


# Keys


def noisy_walk(states: States, actions: Any, rng: np.random.Generator) -> Any:
    """Steps of ±0.1 from 0 to 1, each of which leaves a tiny error behind; the position is the reward."""
    right = rng.random(len(actions)) < np.where(actions == 1, 0.8, 0.2)
    moved = np.clip(states + np.where(right, 0.1, -0.1)[:, None], 0.0, 1.0) + 1e-7 * (rng.random(states.shape) - 0.5)
    return moved, np.clip(np.round(states[:, 0], 1), 0.0, 1.0)


def noisy_model(step: Any = noisy_walk, **declarations: Any) -> sp.VectorModel:
    declared: dict[str, Any] = {
        "actions": 2,
        "discount": 0.7,
        "reward_range": (0, 1),
        "reward_kind": "deterministic",
        "max_successors": 2,
        "terminates": False,
        "initial_state": [0.5],
    }
    return sp.VectorModel(step, **declared | declarations)


def test_a_key_tells_states_apart() -> None:
    """Rounded to a digit the walk is a chain of 11 states."""
    places = np.arange(11)
    down, up = np.maximum(places - 1, 0), np.minimum(places + 1, 10)
    chain = sp.TabularModel(
        np.broadcast_to([[0.8, 0.2], [0.2, 0.8]], (11, 2, 2)),
        np.stack([np.stack([down, up], axis=-1)] * 2, axis=1),
        np.repeat(places[:, None] / 10.0, 2, axis=1),
        discount=0.7,
        initial_state=5,
    )
    planner = OTGapE(HARD, 0.1, SURE, key=lambda state: round(10.0 * state[0]))
    result = sp.plan(planner, noisy_model(), max_calls=20_000)
    assert result.action == 1
    assert identified(result).states <= 11
    assert holds(result, chain, HARD, 5)
    # A table may be searched by keys too.
    unchanged = OTGapE(HARD, 0.1, SURE, key=lambda state: state)
    known = sp.plan(unchanged, chain, max_calls=500)
    assert holds(known, chain, HARD, 5)
    by_bytes = sp.plan(replace(unchanged, key=None), chain, max_calls=500, engine="batched")
    np.testing.assert_array_equal(intervals_of(known), intervals_of(by_bytes))


# Errors


@pytest.mark.parametrize("successors", [1, 2])
def test_a_deterministic_reward_that_varies(successors: int) -> None:
    """It is not blamed on the successors, whether or not all of them have been seen."""
    planner = OTGapE(HARD, 0.0, sampling="trajectories", horizon=20)

    def step(states: States, actions: Any, rng: np.random.Generator) -> Any:
        return rng.integers(successors, size=len(states)), rng.random(len(states))

    model = noisy_model(step, max_successors=successors, initial_state=0)
    with pytest.raises(
        sp.ModelError, match=r"a reward declared deterministic was 0\.\d+, .* at state [01], action [01]"
    ):
        sp.plan(planner, model, max_calls=1000)
    honest = noisy_model(step, max_successors=successors, initial_state=0, reward_kind="bounded")
    assert sp.plan(planner, honest, max_calls=100).calls == 100


BAD: dict[str, list[Any]] = {
    "epsilon": [True],
    "delta": [0.0, 1.0],
    "sampling": ["focussed", None],
    "walk": ["hard", -0.1, 1.1, math.nan, None],
    "horizon": [0, 2.5, "3", True],
    "tail": ["nothing", None],
    "counts": ["pool", None],
    "successors": [0, 1.5],
    "key": [3],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_arguments_are_named(name: str, value: Any) -> None:
    for planner in (OTGapE, MDPGapE):
        arguments: dict[str, Any] = {"backup": HARD, "epsilon": 0.1} | {name: value}
        with pytest.raises((ValueError, TypeError)) as error:
            planner(**arguments)
        assert name in str(error.value)
        assert repr(value) in str(error.value)


def limited(model: sp.GenerativeModel, **options: Any) -> int:
    """The calls of a run with at most 1000 of them."""
    return sp.plan(replace(OTGapE(HARD, 0.1), **options), model, max_calls=1000).calls


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: limited(noisy_model()),
            sp.ModelError,
            r"more than 2 different next states at state \[0\.\d+\], action [01]: .*max_succ",
        ),
        (lambda: limited(garnet(), successors=1), sp.ModelError, r"more than 1 different next states at state \d, "),
        (
            lambda: limited(garnet(), successors=1, horizon=3, counts="stage-wise"),
            sp.ModelError,
            r"more than 1 different next states at state \d, action [01]",
        ),
        (
            lambda: limited(noisy_model(), key=lambda state: state.tolist()),
            TypeError,
            r"key must return something hashable, got \[0\.5\] of state \[0\.5\]",
        ),
        (
            lambda: sp.plan(OTGapE(HARD, 0.1, key=int), garnet(), engine="compiled", max_calls=10),
            ValueError,
            "engine 'compiled' needs a TabularModel and no key",
        ),
        (
            # Beyond four stages lies 0.5⁴·2 = 0.125.
            lambda: sp.plan(OTGapE(HARD, 0.1, horizon=4), garnet()),
            ValueError,
            r"horizon must be longer .* got 4: .* by 0\.12, and epsilon=0\.1 may never",
        ),
        (lambda: OTGapE(HARD, 0.1, tail="zero"), ValueError, "tail='zero' needs a horizon, got horizon=None"),
        (lambda: OTGapE(HARD, 0.1, counts="stage-wise"), ValueError, "counts='stage-wise' needs a horizon"),
        (
            lambda: MDPGapE(sp.LogSumExp(0.5), epsilon=0.1),
            ValueError,
            r"MDPGapE is for the hard maximum, got LogSumExp\(temperature=0\.5.*use OTGapE",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# Prices


@pytest.fixture(scope="module")
def large() -> list[sp.TabularModel]:
    return [sp.models.garnet(100_000, 5, 2, 0.7, seed, sparsity=0.5) for seed in range(5)]


@pytest.mark.parametrize(
    ("backup", "rewards", "epsilon", "most"),
    [
        (HARD, "declared", 1.0, 1e3),
        (HARD, "declared", 0.5, 1.2e4),
        (HARD, "bounded", 1.0, 4e4),
        (HARD, "bounded", 0.5, 2.5e5),
        (sp.LogSumExp(0.05), "declared", 1.0, 2e3),
        (sp.LogSumExp(0.05), "declared", 0.5, 2e4),
    ],
)
def test_prices(large: list[sp.TabularModel], backup: Backup, rewards: Any, epsilon: float, most: float) -> None:
    """The median over five models of 100,000 states; also what is kept of a pair with two successors."""
    models = large if rewards == "declared" else map(bounded, large)
    results = [sp.plan(OTGapE(backup, epsilon), model) for model in models]
    assert all(result.status == "converged" for result in results)
    assert np.median([result.calls for result in results]) <= most
    for found in map(identified, results):
        assert found.bytes <= 200 * found.states * 5
        assert found.gap <= epsilon


# The explored graph

UNPRINTABLE = """<b a='1'>&amp;"]]>\\N \\" {x} // \x00\x1b[31m \ud800 \n -> é"""
"""Means something to XML, to Graphviz, to a terminal, or to an encoder."""


def seen(planner: OTGapE, model: Any, calls: int) -> tuple[sp.PlanResult, dict[str, Any], str]:
    """A run with at most so many calls, and its graph as JSON and as text for Graphviz, which is well formed."""
    result = sp.plan(planner, model, 0, max_calls=calls)
    graph = identified(result).graph
    assert "graph" not in json.loads(result.to_json())["details"]
    assert_graphviz(graph.to_dot())
    return result, json.loads(graph.to_json()), graph.to_dot()


def assert_graphviz(text: str) -> None:
    """A line is a brace, or a statement with quoted texts; lines join nodes that there are."""
    string = r'"(?:[^"\\\n]|\\.)*"'
    attributes = rf"\[\w+=(?:{string}|[\w.#]+)(?:, \w+=(?:{string}|[\w.#]+))*\];"
    first, *lines, last = text.splitlines()
    assert (first, last) == ("digraph explored {", "}")
    nodes, joined = {"graph", "node", "edge"}, set[str]()
    for line in lines:
        found = re.fullmatch(rf"  (\w+)(?: -> (\w+))? {attributes}", line)
        assert found, line
        (nodes if found[2] is None else joined).update(filter(None, found.groups()))
    assert joined <= nodes
    program = shutil.which("dot")
    if program is not None:
        subprocess.run([program, "-Tsvg"], input=text.encode(), check=True, capture_output=True, timeout=60)


def test_the_explored_graph_agrees_with_the_result() -> None:
    result, data, _ = seen(MDPGapE(epsilon=0.01), sp.models.river_swim(discount=0.9), 5_000)
    found = identified(result)
    assert (data["gap"], data["calls"]) == (found.gap, result.calls)
    np.testing.assert_allclose(data["q_intervals"], intervals_of(result), rtol=1e-14)  # those are rounded outward
    np.testing.assert_allclose(data["states"][0]["interval"], result.interval, rtol=1e-14)
    assert len(data["states"]) == data["states_discovered"] == found.states
    assert len(data["pairs"]) == data["pairs_sampled"] == found.pairs
    assert data["states"][0]["name"] == "place 0"
    assert sum(pair["count"] for pair in data["pairs"]) == result.calls
    assert sum(pair["count"] for pair in data["pairs"] if pair["state"] == 0) == result.samples
    for pair in data["pairs"]:
        assert pair["state"] > 0 or pair["q"] == data["q_intervals"][pair["action"]]
        assert pair["name"] == ("left", "right")[pair["action"]]
        assert sum(after["count"] for after in pair["successors"]) == pair["count"]
    ahead: defaultdict[int, set[int]] = defaultdict(set)
    for pair in data["pairs"]:
        ahead[pair["state"]] |= {after["state"] for after in pair["successors"]}
    depths, latest = {0: 0}, {0}
    while latest:
        latest = {number for state in latest for number in ahead[state]} - depths.keys()
        depths |= dict.fromkeys(latest, 1 + max(depths.values()))
    assert {state["number"]: state["depth"] for state in data["states"]} == depths


@pytest.mark.parametrize("counts", ["pooled", "stage-wise"])
@pytest.mark.parametrize("tail", ["honest", "zero"])
def test_an_explored_graph_with_a_horizon_has_states_at_stages(counts: Any, tail: Any) -> None:
    planner = OTGapE(sp.LogSumExp(0.5), epsilon=0.01, horizon=3, counts=counts, tail=tail)
    result, data, dot = seen(planner, garnet(1, states=8, discount=0.9, kind="deterministic"), 400)
    nodes = {(state["number"], state["stage"]): state for state in data["states"]}
    assert [node for node in nodes if node[1] == 0] == [(0, 0)]
    assert all(state["depth"] == state["stage"] <= 3 for state in data["states"])
    np.testing.assert_allclose(nodes[0, 0]["interval"], result.interval, rtol=1e-14)
    reached = {(after["state"], pair["stage"] + 1) for pair in data["pairs"] for after in pair["successors"]}
    assert reached | {(0, 0)} == nodes.keys()
    last = [state["interval"] for state in data["states"] if state["stage"] == 3]
    assert last
    assert all((low == high == 0.0) == (tail == "zero") for low, high in last)
    stages = {(pair["state"], pair["action"], pair["stage"] * (counts != "pooled")): pair for pair in data["pairs"]}
    assert sum(pair["count"] for pair in stages.values()) == result.calls
    assert all(f"\\nstage {stage}\\n" in dot for stage in range(4))


def test_names_in_a_graph_are_escaped() -> None:
    outcomes = [
        [[(0.5, 0, 0.0, False), (0.5, 1, 0.5, False)], [(0.3, 1, 1.0, True), (0.7, 1, 0.0, False)]],
        [[(1.0, 0, 1.0, False)], [(1.0, 1, 0.0, True)]],
    ]
    printable = "".join(filter(str.isprintable, UNPRINTABLE))  # as names of actions must be
    names: Any = {"state_names": [UNPRINTABLE, "the other\nstate"], "action_names": [printable, "a" * 500]}
    model = sp.TabularModel.from_outcomes(outcomes, discount=0.7, reward_range=(0.0, 1.0), **names)
    _, data, dot = seen(OTGapE(sp.LogSumExp(0.5), epsilon=0.01), model, 500)
    assert (data["states"][0]["name"], data["pairs"][0]["name"]) == (UNPRINTABLE, printable)
    assert any(after["state"] == "end" for pair in data["pairs"] for after in pair["successors"])
    assert all(text in dot for text in ("the other state", "a" * 40, "-> end ["))
    assert "\x1b" not in dot
    assert "a" * 41 not in dot


def test_a_picture_of_a_graph_has_a_limit() -> None:
    model = garnet(1, states=200, actions=15, branching=4, discount=0.9, kind="deterministic")
    result, data, _ = seen(OTGapE(sp.LogSumExp(0.5), epsilon=0.01), model, 5_000)
    for limit in (1, 7, 60):
        dot = identified(result).graph.to_dot(limit)
        assert f"the {limit} nearest nodes; {len(data['states']) - limit} more" in dot
        assert len(re.findall(r"^  s\d+ \[", dot, re.MULTILINE)) == limit
        assert re.search(r"-> others \[", dot)
        assert_graphviz(dot)
    with pytest.raises(ValueError, match="limit must be"):
        identified(result).graph.to_dot(0)


def test_a_snapshot_stays_as_it_is() -> None:
    explorer = begun(MDPGapE(epsilon=0.1), sp.models.river_swim())
    graph = explored(explorer, 0.0)
    assert repr(graph) == "Explored(1 states, 0 pairs, 0 calls)"
    for array in explorer.graph:
        array[...] = 1
    assert not graph.graph.pairs["count"].any()
    with pytest.raises(ValueError, match="read-only"):
        graph.graph.hits[0] = 0
