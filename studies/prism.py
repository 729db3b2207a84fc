"""Prism: models that others wrote for model checkers, as tables; searched by bounds, and checked by Storm."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats
from smoothplan.bounds.gape import OTGapE
from smoothplan.models.tabular import Outcome, TabularModel
from smoothplan.run.plan import plan
from smoothplan.run.records import GapDetails
from smoothplan.theory import exact
from smoothplan.theory.backups import HardMax
from studies.base import Cell, Row, Study, varied, where
from studies.findings import Claim, Evidence, Table
from studies.recurrent import redeclared

SHORT = 1e-5
"""1 − γ where the value of a state is nearly its probability to reach the goal."""

TOLERANCE = 2e-4
"""Storm stops at a relative precision of 1e-6; values near γ = 1 are solved to `SOLVED_NEAR_ONE`, and the extrapolation
to γ = 1 adds an error of the order of (`SHORT` · steps to the goal)²."""

SOLVED_NEAR_ONE = 2e-5
SOLVED = 1e-9
"""How accurately values are known."""


class Source(NamedTuple):
    """A model of Storm's examples, and the labels that all goal states have."""

    file: str
    goal: tuple[str, ...]


SOURCES = {
    "maze": Source("mdp/maze_2.nm", ("goal",)),
    "slippery grid": Source("mdp/slipgrid.nm", ("goal",)),
    "choice of dice": Source("mdp/die_selection.nm", ("one",)),
    "two dice": Source("mdp/two_dice.nm", ("two",)),
    "consensus": Source("mdp/coin2-2.nm", ("finished",)),
    "consensus on heads": Source("mdp/coin2-2.nm", ("finished", "all_coins_equal_1")),
    "leader election": Source("mdp/leader3.nm", ("elected",)),
    "CSMA/CD": Source("mdp/csma2-2.nm", ("all_delivered",)),
}
"""Models with a few hundred states and more than one action somewhere."""


class Checked(NamedTuple):
    """A model as a table, and Storm's probabilities to reach the goal, [S]."""

    model: TabularModel
    probabilities: Floats


def table(choices: Sequence[Sequence[Sequence[tuple[float, int]]]], goals: set[int], start: int) -> TabularModel:
    """Discounted reachability: a reward of 1 on entering a goal, which is terminal.

    Args:
        choices: choices[s] has the distributions (probability, next state) that may be chosen at s. A state with fewer
            than others repeats its first one.
        goals: the states to reach.
        start: the initial state.
    """
    actions = max(len(some) for some in choices)
    outcomes: list[list[list[Outcome]]] = [
        [
            [(probability, successor, float(successor in goals), False) for probability, successor in distribution]
            for distribution in [*some, *[some[0]] * (actions - len(some))]
        ]
        for some in choices
    ]
    terminal = [state in goals for state in range(len(choices))]
    declarations = {"discount": 1.0 - SHORT, "reward_range": (0.0, 1.0), "initial_state": start}
    return TabularModel.from_outcomes(outcomes, terminal=terminal, **declarations)


@lru_cache(maxsize=1)
def checked(name: str) -> Checked:
    """A model of Storm's examples, with what Storm says of it; needs stormpy 2."""
    import stormpy
    from stormpy.examples.files import testfile_dir

    source = SOURCES[name]
    goal = " & ".join(f'"{label}"' for label in source.goal)
    program = stormpy.parse_prism_program(str(Path(testfile_dir) / source.file))
    wanted = stormpy.parse_property(f"Pmax=? [F {goal}]", program)
    sparse = stormpy.build_model(program, wanted)
    matrix, groups = sparse.transition_matrix, sparse.nondeterministic_choice_indices
    rows = [[(entry.value, entry.column) for entry in matrix.get_row(row)] for row in range(matrix.nr_rows)]
    choices = [rows[groups[state] : groups[state + 1]] for state in range(sparse.nr_states)]
    labelled = [set(sparse.labeling.get_states(label)) for label in source.goal]
    model = table(choices, set.intersection(*labelled), sparse.initial_states[0])
    return Checked(model, np.array(stormpy.model_checking(sparse, wanted).get_value_vector()))


@dataclass(frozen=True)
class Settings:
    """Which models, how accurately, and how long."""

    models: tuple[str, ...]
    discounts: tuple[float, ...]
    seeds: int
    max_calls: int
    epsilon: float = 0.1
    delta: float = 0.1
    first_seed: int = 0


QUICK = Settings(models=tuple(SOURCES), discounts=(0.9,), seeds=2, max_calls=10**6)
FULL = Settings(models=tuple(SOURCES), discounts=(0.9, 0.99), seeds=10, max_calls=2 * 10**7)

UNIT = (0.0, 1.0)
"""What a discounted probability lies in."""


def cells(settings: Settings) -> Iterator[Cell]:
    """Model by model: the check of its table, then runs without and with the declaration of a value range."""
    common = {"epsilon": settings.epsilon, "delta": settings.delta, "max_calls": settings.max_calls}
    for model in settings.models:
        yield Cell({"family": "check", "model": model}, 0)
        for discount in settings.discounts:
            for declared in (False, True):
                case = {"family": "run", "model": model, "discount": discount, "declared": declared}
                for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
                    yield Cell(case | common, seed)


def measure(cell: Cell) -> Mapping[str, Any]:
    """One check, or one run."""
    model, probabilities = checked(cell.settings["model"])
    if cell.settings["family"] == "check":
        apart = np.abs(limit(model) - probabilities)[~model.terminal]
        return {"states": model.states, "actions": model.actions, "apart": float(apart.max())}
    return _run(model, cell)


def limit(model: TabularModel) -> Floats:
    """The values as γ → 1, [S], by extrapolation along a line."""
    near, far = (
        exact.solve(redeclared(model, discount=1.0 - short), HardMax(), SOLVED_NEAR_ONE).values
        for short in (SHORT, 2.0 * SHORT)
    )
    return np.asarray(2.0 * near - far)


def _run(undiscounted: TabularModel, cell: Cell) -> dict[str, Any]:
    """What a run took, whether an interval of any discovered state misses, and the regret of the action."""
    s = cell.settings
    model = redeclared(undiscounted, discount=s["discount"], **({"value_range": UNIT} if s["declared"] else {}))
    solution = exact.solve(model, HardMax(), SOLVED)
    result = plan(OTGapE(HardMax(), s["epsilon"], s["delta"]), model, seed=cell.seed, max_calls=s["max_calls"])
    found = result.details
    assert isinstance(found, GapDetails)
    assert found.graph is not None
    states = np.asarray(found.graph.states)
    q = solution.q[model.initial_state]
    return {
        "calls": result.calls,
        "status": result.status,
        "gap": found.gap,
        "missed": missed(found.graph.q[:, 0], solution.q[states]) or missed(result.interval, np.asarray(q.max())),
        "regret": float(q.max() - q[result.action]),
    }


def missed(intervals: Any, truth: Floats) -> bool:
    """Whether any interval [..., 2] misses its true value [...]."""
    bounds = np.asarray(intervals)
    return bool(((bounds[..., 0] > truth + SOLVED) | (bounds[..., 1] < truth - SOLVED)).any())


APART = "largest difference between the table's values as γ → 1 and Storm's probabilities"
MISSED = "share of runs in which an interval of any discovered state and action misses the truth"
WRONG = "share of runs that ended whose action is worse than the best one by more than ε"


def evidence(settings: Settings, rows: Sequence[Row]) -> Evidence:
    """Whether tables are right and intervals hold; and a table of prices."""
    checks, runs = where(rows, family="check"), where(rows, family="run")
    ended = [row for row in runs if row.result["status"] == "converged"]
    claims = [
        Claim(
            statement="The tables are the models: Storm finds the same probabilities to reach the goal.",
            quantity=APART,
            theory="0",
            measured=max(row.result["apart"] for row in checks),
            stated=(-math.inf, TOLERANCE),
            reason="Storm's precision, that of the exact solver near γ = 1, and the extrapolation",
        ),
        _share(settings, MISSED, [row.result["missed"] for row in runs]),
        _share(settings, WRONG, [row.result["regret"] > settings.epsilon + SOLVED for row in ended]),
    ]
    notes = [
        f"{len(runs) - len(ended)} of {len(runs)} runs did not end within {settings.max_calls:,} calls.",
        "At most roots all actions are alike, because processes are: no action is ever proved to be the best, and a "
        "run ends when the intervals are narrow.",
    ]
    return Evidence(claims=claims, tables=[_prices(settings, checks, runs)], notes=notes)


def _share(settings: Settings, quantity: str, bad: Sequence[bool]) -> Claim:
    return Claim(
        statement="Intervals and actions are right with probability 1 − δ on models that others wrote.",
        quantity=quantity,
        theory=f"at most {settings.delta:g}",
        measured=float(np.mean(bad)) if bad else 0.0,
        stated=(-math.inf, settings.delta),
        reason=f"δ = {settings.delta:g}, checked against exact solutions, over {len(bad)} runs",
    )


def _prices(settings: Settings, checks: Sequence[Row], runs: Sequence[Row]) -> Table:
    """Median calls and gaps."""
    rows = []
    for check in checks:
        name = check.settings["model"]
        for discount in settings.discounts:
            for declared in varied(runs, "declared"):
                some = where(runs, model=name, discount=discount, declared=declared)
                calls, gap = (float(np.median([row.result[field] for row in some])) for field in ("calls", "gap"))
                known = "values in [0, 1]" if declared else "rewards in [0, 1]"
                rows.append([name, check.result["states"], discount, known, round(calls), round(gap, 4)])
    return Table(
        name="prism-prices",
        title=f"Simulator calls to a gap of {settings.epsilon:g}, or to {settings.max_calls:,} calls; medians",
        columns=["model", "states", "γ", "declared", "calls", "gap left"],
        rows=rows,
    )


STUDY = Study(
    name="prism",
    title="Models written for model checkers",
    question="On models that others wrote for model checkers, do intervals hold, and what is a declared value range "
    "worth?",
    quick=QUICK,
    full=FULL,
    cells=cells,
    measure=measure,
    evidence=evidence,
    needs=("stormpy",),
)
