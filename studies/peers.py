"""Peers: the regret of `decide` beside those of other planners, for the same number of simulator calls."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from statistics import median
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.run.records import Planner
from studies.base import Cell, Row, Study, varied, where
from studies.findings import Axis, Claim, Evidence, Figure, Series, Table
from studies.peer_problems import BUILT
from studies.regret import Mean, Task, over_models, shuffled
from studies.rivals import HAS_MCTX, gumbel, kl_olop

DECIDE, ONE_TREE, MANY_TREES = "decide", "mctx, one tree", "mctx, √n trees"
OURS = (DECIDE, "UCT", "UCT, no rollouts", "MDPGapE", "KL-OLOP")

SOLVED = 1e-8
"""How accurately optimal values are known; actions that are alike differ by less than twice as much."""

MARGIN = 0.02
"""A mean regret above the best one, as a share of the span, that counts as a loss on one problem."""


@dataclass(frozen=True)
class Settings:
    """Problems by name, pairs of a root and a seed for each, and limits on simulator calls."""

    pairs: int
    budgets: tuple[int, ...] = (1_000, 10_000, 100_000)
    one_tree: int = 1_000  # the largest budget of one tree of mctx, whose time grows with its square
    problems: tuple[str, ...] = tuple(BUILT)


QUICK = Settings(pairs=16)
FULL = Settings(pairs=200, one_tree=10_000)


@cache
def problem(name: str) -> tuple[sp.TabularModel, Floats, int]:
    """A model, its optimal action values [S, K], and its start."""
    build, start = BUILT[name]
    model = build()
    return model, sp.exact.solve(model, sp.HardMax(), SOLVED).q, start


@lru_cache(maxsize=1)
def task(name: str, seed: int) -> Task:
    """A state that optimal play meets, if one action in five is random, and where actions differ; these are shuffled.

    Whoever knows nothing and takes the first action takes a random one.
    """
    model, q, start = problem(name)
    rng, span = np.random.default_rng(seed), np.ptp(q, axis=1)
    while True:
        state = start
        for _ in range(int(rng.integers(25))):
            action = int(rng.integers(model.actions) if rng.random() < 0.2 else q[state].argmax())
            following, _, ends = model.step(np.array([state]), np.array([action]), rng)
            if ends[0]:
                break
            state = int(following[0])
        if span[state] > 0.05 * span[start]:
            order = rng.permutation(model.actions)
            return Task(shuffled(model, order), state, q[state, order])


def cells(settings: Settings) -> Iterator[Cell]:
    """All planners at one root, then at the next."""
    for name in settings.problems:
        for seed in range(settings.pairs):
            for planner in (*OURS, ONE_TREE, MANY_TREES) if HAS_MCTX else OURS:
                for budget in settings.budgets:
                    if planner != ONE_TREE or budget <= settings.one_tree:
                        yield Cell({"problem": name, "planner": planner, "budget": budget}, seed)


def measure(cell: Cell) -> Mapping[str, Any]:
    """The regret of an action as a share of the span of all, and how `decide` found it."""
    s = cell.settings
    model, root, q = task(s["problem"], cell.seed)
    action, method = chosen(s["planner"], model, root, s["budget"], cell.seed)
    loss = float(q.max() - q[action])
    return {"regret": loss / float(np.ptp(q)) if loss > 2.0 * SOLVED else 0.0, "method": method}


def chosen(planner: str, model: sp.TabularModel, root: int, calls: int, seed: int) -> tuple[int, str]:
    """The action of a planner, and how it was found, in words, if the planner tells."""
    match planner:
        case "KL-OLOP":
            return kl_olop(model, root, calls, np.random.default_rng(seed)), ""
        case "mctx, one tree":
            return gumbel(model, root, calls, 1, seed), ""
        case "mctx, √n trees":
            return gumbel(model, root, calls, math.isqrt(calls), seed), ""
        case "decide":
            decision = sp.decide(model, root, calls=calls, seed=seed)
            assert decision.action is not None
            return decision.action, decision.method
        case "MDPGapE":
            search: Planner = sp.MDPGapE(epsilon=0.0)
        case _:
            search = sp.UCT(rollout="random" if planner == "UCT" else "none")
    found = sp.plan(search, model, root, seed=seed, max_calls=calls).action
    assert found is not None
    return found, ""


def regrets(rows: Sequence[Row], **wanted: Any) -> list[float]:
    """The regrets of some rows, as shares of the span."""
    return [float(row.result["regret"]) for row in where(rows, **wanted)]


def excess(rows: Sequence[Row], problems: Sequence[str], rival: str, budget: int) -> Mean:
    """The regret of `decide` less that of a rival, root by root, mean over problems."""
    behind = []
    for name in problems:
        own, other = (regrets(rows, problem=name, planner=who, budget=budget) for who in (DECIDE, rival))
        behind.append(Mean.of(np.subtract(own, other)))
    return over_models(behind)


def best_rival(rows: Sequence[Row], problems: Sequence[str], budget: int) -> tuple[str, Mean]:
    """The rival with the least mean regret, and the excess of `decide` over it."""
    rivals = [planner for planner in varied(where(rows, budget=budget), "planner") if planner != DECIDE]
    found = {rival: excess(rows, problems, rival, budget) for rival in rivals}
    return max(found.items(), key=lambda item: item[1].value)


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Regrets by problem, planner and budget, and whether `decide` is behind anybody."""
    claims = [_not_behind(settings, rows, budget) for budget in settings.budgets]
    unseen = 1.0 - 0.05 ** (1.0 / settings.pairs)  # the largest chance of an event that is not seen, at 95 %
    mctx = "mctx is not installed: its columns are absent."
    if MANY_TREES in varied(rows, "planner"):
        mctx = (
            f"mctx {version('mctx')}, gumbel_muzero_policy without Gumbel noise: a node keeps the transition that was "
            "drawn when it was added, so that one tree plans for these draws; √n trees share the calls and average "
            "their action values. A simulation is one call. Priors are uniform; a new node has the middle of the "
            f"possible values. One tree of more than {settings.one_tree:,} simulations takes too long here."
        )
    return Evidence(
        claims=[*claims, _nowhere_behind(settings, rows)],
        figures=[_figure(settings, rows)],
        tables=[_regrets(settings, rows), _times(settings, rows)],
        notes=[
            "Regret: the exact value of the best action less that of the chosen one, as a share of the span between "
            "the best and the worst action. A pair has a state that optimal play meets, an order of the actions and a "
            "seed; it is the same for all planners and budgets.",
            f"A standard error of 0 means that all {settings.pairs} states gave the same regret. If it is 0, a "
            f"wrong action is still possible at up to {100.0 * unseen:.0f} % of all states, "
            "at the level 95 %.",
            "Tables list successors in the order of states. That may help a planner whose actions share random "
            "numbers, as those of decide do.",
            "The best rival is the one with the least mean regret in these rows, which favours it: by chance one of "
            "several is ahead.",
            "UCT has its defaults, with random rollouts or with the middle of the possible values. The planners of "
            "rl-agents are not run: they are represented by MDPGapE of this library and by KL-OLOP, "
            "written anew for this study from the paper.",
            mctx,
        ],
    )


def _not_behind(settings: Settings, rows: Sequence[Row], budget: int) -> Claim:
    rival, behind = best_rival(rows, settings.problems, budget)
    return Claim(
        statement=f"With {budget:,} calls, no rival has less mean regret than decide.",
        quantity=f"mean regret of decide after {budget:,} calls less that of the best rival ({rival}), less two "
        "standard errors, mean over problems, as a share of the span",
        theory="at most 0",
        measured=behind.value - 2.0 * behind.error,
        stated=(-math.inf, 0.0),
        reason=f"less than two standard errors may be noise; the difference is {behind.value:.2g} ± {behind.error:.1g}",
    )


def _nowhere_behind(settings: Settings, rows: Sequence[Row]) -> Claim:
    budget = max(settings.budgets)
    found = {name: best_rival(rows, [name], budget) for name in settings.problems}
    name, (rival, behind) = max(found.items(), key=lambda item: item[1][1].value - 2.0 * item[1][1].error)
    return Claim(
        statement=f"With {budget:,} calls, decide is behind nobody on any problem.",
        quantity=f"largest mean regret of decide after {budget:,} calls less that of the best rival on the problem, "
        f"less two standard errors, as a share of the span: {name}, {rival}",
        theory="at most 0",
        measured=behind.value - 2.0 * behind.error,
        stated=(-math.inf, MARGIN),
        reason=f"{100.0 * MARGIN:g} % of the span, as nobody knows in advance which rival is best on a problem",
    )


def _figure(settings: Settings, rows: Sequence[Row]) -> Figure:
    series = []
    for planner in varied(rows, "planner"):
        budgets = varied(where(rows, planner=planner), "budget")
        means = []
        for budget in budgets:
            found = [regrets(rows, problem=name, planner=planner, budget=budget) for name in settings.problems]
            means.append(over_models([Mean.of(each) for each in found]))
        low, high = ([100.0 * max(0.0, mean.value + sign * mean.error) for mean in means] for sign in (-1.0, 1.0))
        places = [float(budget) for budget in budgets]
        series.append(Series(planner, places, [100.0 * mean.value for mean in means], low, high))
    return Figure(
        name="peers-regret",
        title="Regret of planners against simulator calls",
        caption=f"Means over {len(settings.problems)} problems, {settings.pairs} states each, ± one standard error.",
        x=Axis("simulator calls", log=True),
        y=Axis("mean regret in % of the span"),
        series=series,
    )


def _regrets(settings: Settings, rows: Sequence[Row]) -> Table:
    def told(name: str, planner: str, budget: int) -> str:
        found = regrets(rows, problem=name, planner=planner, budget=budget)
        mean = Mean.of(found) if found else None
        return f"{100.0 * mean.value:.1f} ± {100.0 * mean.error:.1f}" if mean else ""

    planners = varied(rows, "planner")
    lines = [(name, budget) for name in settings.problems for budget in settings.budgets]
    return Table(
        "peers-regret",
        "Mean regret in % of the span ± its standard error",
        ("problem", "calls", *planners),
        [[name, f"{budget:,}", *(told(name, planner, budget) for planner in planners)] for name, budget in lines],
    )


def _times(settings: Settings, rows: Sequence[Row]) -> Table:
    def told(planner: str, budget: int) -> str:
        found = [row.seconds for row in where(rows, planner=planner, budget=budget)]
        return f"{median(found):.2g}" if found else ""

    return Table(
        "peers-seconds",
        "Median time in seconds, all problems",
        ("planner", *(f"{budget:,} calls" for budget in settings.budgets)),
        [[who, *(told(who, budget) for budget in settings.budgets)] for who in varied(rows, "planner")],
    )


STUDY = Study(
    name="peers",
    title="Decisions beside other planners",
    question="Is the action of `decide` at least as good as those of other planners, for the same number of simulator "
    "calls?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
    sources=("peer_problems.py", "rivals.py", "regret.py"),
)
