"""References that are saved and restored go on with the same bits; arrays that do not fit are refused."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.records import Arrays
from smoothplan.chains.fitted import FittedReference
from smoothplan.chains.grid import GridReference
from smoothplan.chains.maker import default_reference
from smoothplan.chains.reference import Savable
from smoothplan.chains.shared import SharedReference
from smoothplan.models.model import States
from tests.common import Counter, by_state, ending, vectorised
from tests.saving import Damage, copied, equal, put, refused, remade

ENDING, LARGE = ending(2, 0.6, 1), sp.models.garnet(400, 3, 2, 0.8, 2)
"""The second has more states than there is room for at first."""


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
    "table": lambda: SharedReference(ENDING, by_state(ENDING), root=0, seed=1),
    "keyed": lambda: SharedReference(vectorised(ENDING), by_state(ENDING)),
    "key": lambda: SharedReference(vectorised(LARGE), sp.LogSumExp(0.1), key=int),
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
    table, plane = Counter(ENDING), Counter(LINE)
    for counter, model in ((table, vectorised(ENDING, table)), (plane, line(plane))):
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
    ("'optimistic' must be values", remade("optimistic", lambda values: np.zeros(len(values) + 1000))),
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
    table = ENDING
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
