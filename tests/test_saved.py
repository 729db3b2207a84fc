"""Searches and references that are saved and restored go on with the same bits; arrays that do not fit are refused."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.arguments import Floats, Ints
from smoothplan.models.base import States
from smoothplan.planners.gape import OTGapE
from smoothplan.references import FittedReference, GridReference, SharedReference, default_reference
from smoothplan.references.base import Savable
from smoothplan.running.run import EngineName
from smoothplan.search.explored import explored
from smoothplan.search.explorer import Explorer
from smoothplan.search.graph import DEBT, OUTCOMES, STATES, Graph
from smoothplan.search.saved import Arrays
from tests.common import Counter, begun, by_state, ending, vectorised

MANY = 10**9
"""More rounds than any search makes."""

UNTIL = (0, 1, 9, 60, 300, 303, 500)
"""Calls after which a search pauses."""


def copied(arrays: Arrays) -> Arrays:
    """What comes back from a file: the same bytes elsewhere, read-only."""
    assert all(array.dtype.kind in "biufV" and not array.dtype.hasobject for array in arrays.values())
    return {
        name: np.frombuffer(array.tobytes(), dtype=array.dtype).reshape(array.shape) for name, array in arrays.items()
    }


def equal(one: Arrays, two: Arrays) -> bool:
    """Whether all arrays agree to the last bit."""
    return one.keys() == two.keys() and all(
        (one[name].dtype, one[name].shape, one[name].tobytes())
        == (two[name].dtype, two[name].shape, two[name].tobytes())
        for name in one
    )


def content(graph: Graph) -> Arrays:
    """All of a graph but where the outcomes of a pair are; `saved` has the outcomes themselves."""
    arrays = {name: array.copy() for name, array in graph._asdict().items() if name not in OUTCOME_ARRAYS}
    arrays["pairs"]["start"] = arrays["pairs"]["room"] = 0
    arrays["totals"][OUTCOMES] = 0
    return arrays


OUTCOME_ARRAYS = ("successors", "hits", "rewards")


def same(one: Explorer, two: Explorer) -> bool:
    """Whether two searches are the same, room for states and all."""
    return (
        equal(content(one.graph), content(two.graph))
        and equal(one.saved(), two.saved())
        and np.array_equal(one.rules.soft.weights, two.rules.soft.weights)
        and (one.interval, one.certificate, one.oracle.calls) == (two.interval, two.certificate, two.oracle.calls)
    )


# Searches

PLANNERS: dict[str, dict[str, Any]] = {
    "focused": {},
    "trajectories": {"sampling": "trajectories", "walk": 0.5},
    "pooled": {"horizon": 4, "tail": "zero"},
    "stage-wise": {"horizon": 3, "counts": "stage-wise"},
    "stage-wise trajectories": {"horizon": 3, "counts": "stage-wise", "sampling": "trajectories", "rewards": "bounded"},
    "published": {"horizon": 3, "tail": "zero", "thresholds": "published"},
}

MODELS: dict[str, sp.TabularModel] = {
    "ending": ending(2, 0.6, 1),
    "large": sp.models.garnet(400, 3, 2, 0.8, 2),  # more states than there is room for at first
    "bernoulli": sp.models.garnet(100, 2, 1, 0.7, 3, reward_kind="bernoulli"),
}


@pytest.mark.parametrize("engine", ["compiled", "batched", "key"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("options", PLANNERS.values(), ids=PLANNERS.keys())
def test_a_restored_search_goes_on_with_the_same_bits(
    options: dict[str, Any], model: sp.TabularModel, engine: Any
) -> None:
    if engine == "key":
        options, engine = options | {"key": lambda state: str(int(state))}, "batched"
    planner = OTGapE(by_state(model), 0.0, **options)
    undisturbed = begun(planner, model, engine)
    restored: list[Explorer] = []
    for until in UNTIL:
        for search in (undisturbed, *restored):
            search.explore(0.0, until, MANY)
            assert same(search, undisturbed)
        fresh = begun(planner, model, engine)
        fresh.restore(copied(undisturbed.saved()))
        assert same(fresh, undisturbed)
        if until in (9, 300):
            restored.append(fresh)
    assert undisturbed.graph.totals[STATES] >= 5


def test_what_is_saved_does_not_change() -> None:
    search = begun(OTGapE(sp.HardMax(), 0.0), MODELS["large"])
    arrays = search.saved()
    before = copied(arrays)
    search.explore(0.0, 500, MANY)
    assert equal(arrays, before)
    # Going back is as good as going on.
    later = search.saved()
    search.restore(arrays)
    assert equal(search.saved(), before)
    search.explore(0.0, 500, MANY)
    assert equal(search.saved(), later)


def test_states_of_any_shape_and_a_simulator_that_draws_small_numbers() -> None:
    """Numbers of 32 bits leave half of a word behind in the generator."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        moved = states.copy()
        moved[:, 1, 0] = rng.integers(2, size=len(states), dtype=np.int32)
        moved[:, 0, 0] = np.where(states[:, 0, 0] == 0.0, -0.0, states[:, 0, 0]) + actions
        return moved % np.float32(5.0), np.full(len(states), 0.5)

    start = np.zeros((2, 1), dtype=np.float32)
    model = sp.VectorModel(step, actions=2, discount=0.5, reward_range=(0, 1), max_successors=2, initial_state=start)
    planner = OTGapE(sp.LogSumExp(0.1), 0.0)
    for pause in range(30, 34):
        search, fresh = begun(planner, model, state=start), begun(planner, model, state=start)
        search.explore(0.0, pause, MANY)
        fresh.restore(copied(search.saved()))
        for one in (search, fresh):
            one.explore(0.0, 200, MANY)
        assert same(search, fresh)


# What does not fit


def put(name: str, index: Any, value: Any) -> Callable[[Arrays], None]:
    """Changes a number in an array."""

    def change(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def put_field(name: str, field: str, value: Any) -> Callable[[Arrays], None]:
    """Changes a field of the first record of an array."""

    def change(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][field][0] = value

    return change


def remade(name: str, function: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    """Replaces an array."""

    def change(arrays: Arrays) -> None:
        arrays[name] = function(arrays[name])

    return change


Damage = tuple[str, Callable[[Arrays], Any]]
"""What an error says, and what was done to the arrays."""

MISFITS: list[Damage] = [
    ("'hits' is missing", lambda arrays: arrays.pop("hits")),
    ("'low' must have shape", remade("low", lambda low: low[:-1])),
    ("'high' must have dtype float64", remade("high", lambda high: high.astype(np.float32))),
    ("'q_low' must be finite", put("q_low", (0, 0), np.nan)),
    ("must be the state of a generator", put("generator", 4, 2)),
    ("'totals' and 'room' must be those", put("totals", STATES, 2**31)),
    ("'entries' must be pairs", put("entries", -1, 2**40)),
    ("'successors' must be known states", put("successors", 0, 2**30)),
    ("'successors' must be known states", put("successors", 0, -1)),
    ("'pairs' must have outcomes", put_field("pairs", "seen", 0)),
    ("'pairs' must have outcomes", put_field("pairs", "seen", 1000)),
    ("'totals' must be those of the outcomes", put("totals", OUTCOMES, 0)),
    ("'rounds' must be those of this search", put("rounds", 3, 1000)),
    ("'rounds' must be those of this search", put("rounds", 3, -1)),
    ("'rounds' must be those of this search", put("rounds", 1, 0)),
    ("'proved' must have one row at most", remade("proved", lambda _: np.zeros((2, 3)))),
    ("'visits' must be those of known pairs", remade("visits", lambda _: np.zeros((2, 10**6)))),
    ("'relative_visits' must be finite", remade("relative_visits", lambda _: np.full((2, 1), np.nan))),
]
TABLE_MISFITS: list[Damage] = [
    ("'keys' must begin with the root", put("keys", 0, 5)),
    ("'keys' must be states", put("keys", 1, 12)),
]
STATES_MISFITS: list[Damage] = [
    ("'states' must begin with the root", put("states", 0, 5)),
    ("'states' must differ in their keys", put("states", 1, 0)),
]


def refused(fresh: Explorer | SharedReference | GridReference, good: Arrays, damages: list[Damage]) -> None:
    """Each damage is an error that names it, and leaves everything as it was."""
    before = fresh.saved()
    for complaint, damage in damages:
        arrays = dict(good)
        damage(arrays)
        with pytest.raises(ValueError, match=complaint):
            fresh.restore(arrays)
        assert equal(fresh.saved(), before)


@pytest.mark.parametrize(("engine", "more"), [("compiled", TABLE_MISFITS), ("batched", STATES_MISFITS)])
def test_arrays_that_do_not_fit_are_refused(engine: EngineName, more: list[Damage]) -> None:
    planner = OTGapE(by_state(MODELS["ending"]), 0.0)
    search, fresh = (begun(planner, MODELS["ending"], engine) for _ in range(2))
    search.explore(0.0, 500, MANY)
    good = search.saved() | {"another name": np.zeros(3)}
    refused(fresh, good, MISFITS + more)
    fresh.restore(good)
    assert same(fresh, search)


def test_a_search_of_another_kind_is_refused() -> None:
    searches = [begun(OTGapE(sp.HardMax(), 0.0, **options), MODELS["ending"]) for options in PLANNERS.values()]
    searches.append(begun(OTGapE(sp.HardMax(), 0.0), MODELS["large"]))
    searches.append(begun(OTGapE(sp.HardMax(), 0.0, successors=5), MODELS["ending"]))
    searches.append(begun(OTGapE(sp.HardMax(), 0.0), MODELS["ending"], "batched"))
    target = begun(OTGapE(sp.HardMax(), 0.0, horizon=7), MODELS["ending"])
    for search in searches:
        search.explore(0.0, 100, MANY)
        with pytest.raises(ValueError, match="the saved arrays do not fit"):
            target.restore(search.saved())


# Interruptions


def uncharged(search: Explorer) -> Arrays:
    """All of a search but what counts calls, also those that were interrupted."""
    arrays = content(search.graph) | {name: search.saved()[name] for name in OUTCOME_ARRAYS}
    del arrays["spent"]
    arrays["totals"][DEBT] = 0
    return arrays


@pytest.mark.parametrize("options", [PLANNERS["focused"], PLANNERS["stage-wise trajectories"]])
def test_a_search_is_whole_wherever_its_simulator_is_interrupted(options: dict[str, Any]) -> None:
    """What an interrupted call leaves behind is the graph before that call, to the last bit."""
    table = MODELS["ending"]
    planner = OTGapE(by_state(table), 0.0, **options)
    before: list[Arrays] = []

    def recording(states: States, actions: Ints, rng: np.random.Generator) -> Any:
        before.append(uncharged(undisturbed))
        return table.step(states, actions, rng)

    undisturbed = begun(planner, vectorised(table, recording))
    undisturbed.explore(0.0, 600, MANY)
    for last in (*range(60), *range(60, min(len(before), 300), 17)):
        calls = count()

        def step(states: States, actions: Ints, rng: np.random.Generator) -> Any:
            if next(calls) == last:  # noqa: B023
                raise KeyboardInterrupt
            return table.step(states, actions, rng)

        model = vectorised(table, step)
        search = begun(planner, model)
        with pytest.raises(KeyboardInterrupt):
            search.explore(0.0, 600, MANY)
        assert equal(uncharged(search), before[last])
        assert search.graph.spent.sum() == search.oracle.calls > search.graph.pairs["count"].sum()
        snapshot = explored(search, model)
        assert (snapshot.intervals[..., 0] <= snapshot.intervals[..., 1]).all()
        assert len(snapshot.states) == search.graph.totals[STATES]
        fresh = begun(planner, vectorised(table))
        fresh.restore(copied(search.saved()))
        if last % 10 == 0:
            for one in (search, fresh):
                one.explore(0.0, 400, MANY)
        assert same(search, fresh)


# References


def _noisy(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
    """Steps on a line, some of them lost; the reward is the place."""
    moved = np.clip(states + 0.2 * (2 * actions[:, None] - 1) + 0.05 * rng.normal(size=states.shape), -1.0, 1.0)
    return moved, states[:, 0]


def line(step: Any) -> sp.VectorModel:
    return sp.VectorModel(
        step, actions=2, discount=0.8, reward_range=(-1, 1), terminates=False, initial_state=np.zeros(1)
    )


LINE = line(_noisy)

REFERENCES: dict[str, Callable[[], SharedReference | GridReference]] = {
    "table": lambda: SharedReference(MODELS["ending"], by_state(MODELS["ending"]), root=0, seed=1),
    "keyed": lambda: SharedReference(vectorised(MODELS["ending"]), by_state(MODELS["ending"])),
    "key": lambda: SharedReference(vectorised(MODELS["large"]), sp.LogSumExp(0.1), key=int),
    "open grid": lambda: GridReference.build(LINE, sp.LogSumExp(0.1), cells=6, samples=2, seed=1),
    "periodic grid": lambda: GridReference.build(LINE, sp.HardMax(), low=[-1.0], high=[1.0], cells=6, periodic=[0]),
    "compiled simulator": lambda: GridReference.build(sp.models.mountain_car(), sp.HardMax(), cells=8),
}


def answers(reference: SharedReference | GridReference | FittedReference, errors: bool = True) -> Arrays:
    """What a reference says of some states."""
    if isinstance(reference, FittedReference):
        return {"q": reference.q(np.linspace(-1.0, 1.0, 50)[:, None])}
    if isinstance(reference, GridReference):
        states = np.random.default_rng(0).uniform(-1.0, 1.0, (50, len(reference.grid.low)))
        return {"q": reference.q(states)}
    found = {"q": reference.q(np.arange(12))}
    if errors:
        found["errors"] = reference.error_range(np.arange(12))
    return found


@pytest.mark.parametrize("make", REFERENCES.values(), ids=REFERENCES.keys())
def test_a_restored_reference_goes_on_with_the_same_bits(make: Callable[[], SharedReference | GridReference]) -> None:
    undisturbed = make()
    assert isinstance(undisturbed, Savable)
    restored: list[SharedReference | GridReference] = []
    for number, calls in enumerate((1, 300, 700, 1, 2000)):
        fresh = make()
        fresh.restore(copied(undisturbed.saved()))
        restored.append(fresh)
        expected = None
        for reference in (undisturbed, *restored):
            # Questions are part of the history: estimates begin where the last ones ended.
            found = answers(reference) if number != 2 else {}
            reference.improve(calls)
            found |= {f"{name} then": values for name, values in answers(reference, number == 3).items()}
            expected = expected or found
            assert equal(found, expected)
            assert equal(reference.saved(), undisturbed.saved())
            assert reference.calls == undisturbed.calls


def test_a_default_reference_is_restored_without_a_call() -> None:
    table, plane = Counter(MODELS["ending"]), Counter(LINE)
    for counter, model in ((table, vectorised(MODELS["ending"], table)), (plane, line(plane))):
        made = default_reference(model, sp.LogSumExp(0.1), calls=2000, seed=1)
        made.improve(500)
        before = counter.calls
        again = default_reference(model, sp.LogSumExp(0.1), calls=2000, seed=1, saved=copied(made.saved()))
        assert counter.calls == before > 0
        assert equal(answers(again), answers(made))
        for reference in (again, made):
            reference.improve(500)
        assert equal(again.saved(), made.saved())


SHARED_DAMAGES: list[Damage] = [
    ("'hopes' must be values", remade("hopes", lambda hopes: np.zeros(len(hopes) + 1000))),
    ("'estimates_q' must be finite", put("estimates_q", (0, 0), np.nan)),
    ("'up_to_date' must be numbers of calls", put("up_to_date", 0, 2**40)),
]
GRID_DAMAGES: list[Damage] = [
    ("'table' must have shape", put("shape", 0, 100)),
    ("'table' must be finite", put("table", (0, 0), np.nan)),
    ("must be below the upper", put("grid", (0, 0), 1e9)),
    ("'grid' must be inside", put("grid", (0, 0), -1e9)),
    ("'generator' is missing", lambda arrays: arrays.pop("generator")),
]


@pytest.mark.parametrize(("name", "damages"), [("keyed", SHARED_DAMAGES), ("compiled simulator", GRID_DAMAGES)])
def test_damaged_references_are_refused(name: str, damages: list[Damage]) -> None:
    reference = REFERENCES[name]()
    reference.improve(300)
    answers(reference)
    refused(reference, reference.saved(), damages)


def test_the_ends_of_a_box_that_were_given_stay() -> None:
    saved = REFERENCES["open grid"]().saved()
    with pytest.raises(ValueError, match="the corners of a box must be those that were given"):
        GridReference.build(LINE, sp.LogSumExp(0.1), low=[-0.5], samples=2, saved=saved)


@pytest.mark.parametrize("grid", [False, True])
def test_a_reference_is_whole_wherever_its_simulator_is_interrupted(grid: bool) -> None:
    table = MODELS["ending"]
    simulator: Any = LINE if grid else table
    for last in range(60):
        calls = count(-1000 if grid else 0)  # a grid is built by calls that are not interrupted

        def step(states: States, actions: Ints, rng: np.random.Generator) -> Any:
            if next(calls) == last:  # noqa: B023
                raise KeyboardInterrupt
            return simulator.step(states, actions, rng)

        reference: SharedReference | GridReference
        if grid:
            reference = GridReference.build(line(step), sp.HardMax(), cells=6, samples=2)
            calls = count()
        else:
            reference = SharedReference(vectorised(table, step), by_state(table))
        before = answers(reference)
        try:
            reference.improve(2000)
        except KeyboardInterrupt:
            pass
        else:
            assert grid
            continue
        assert all(np.isfinite(values).all() for values in (answers(reference) | before).values())
        fresh = REFERENCES["open grid" if grid else "keyed"]()
        fresh.restore(copied(reference.saved()))
        assert equal(answers(fresh), answers(reference))
