"""Explorers that are saved, restored or interrupted go on with the same bits."""

from itertools import count
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays
from smoothplan.bounds.explored import explored
from smoothplan.bounds.gape import OTGapE
from smoothplan.graph.explorer import Explorer
from smoothplan.models.model import States
from tests.common import begun, by_state, ending, vectorised
from tests.saving import copied, equal

MANY = 10**9
"""More rounds than any search makes."""


def same(one: Explorer, two: Explorer) -> bool:
    """Whether two searches are the same, the priors of their states included."""
    weights, others = (search.rules.soft.weights[: search.count] for search in (one, two))
    return equal(one.saved(), two.saved()) and np.array_equal(weights, others)


PLANNERS: dict[str, dict[str, Any]] = {
    "focused": {},
    "trajectories": {"sampling": "trajectories", "walk": 0.5},
    "pooled": {"horizon": 4, "tail": "zero"},
    "stage-wise": {"horizon": 3, "counts": "stage-wise"},
    "stage-wise trajectories": {"horizon": 3, "counts": "stage-wise", "sampling": "trajectories"},
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
    for until in (0, 1, 9, 60, 300, 303, 500):
        for search in (undisturbed, *restored):
            search.explore(0.0, until, MANY)
            assert same(search, undisturbed)
        fresh = begun(planner, model, engine)
        fresh.restore(copied(undisturbed.saved()))
        assert same(fresh, undisturbed)
        if until in (9, 300):
            restored.append(fresh)
    assert undisturbed.count >= 5


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


def uncharged(search: Explorer) -> Arrays:
    """All of a search but the random streams, which count calls that were interrupted too."""
    arrays = search.saved()
    for name in ("generator", "stream"):
        del arrays[name]
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

        search = begun(planner, vectorised(table, step))
        with pytest.raises(KeyboardInterrupt):
            search.explore(0.0, 600, MANY)
        assert equal(uncharged(search), before[last])
        assert search.oracle.calls > search.graph.spent.sum() == search.graph.pairs["count"].sum()
        graph = explored(search, 0.0).graph
        assert (graph.low <= graph.high).all()
        fresh = begun(planner, vectorised(table))
        fresh.restore(copied(search.saved()))
        if last % 10 == 0:
            for one in (search, fresh):
                one.explore(0.0, 400, MANY)
        assert same(search, fresh)
