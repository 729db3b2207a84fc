"""Making and improving references within a budget."""

from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import working_time
from smoothplan.chains.fitted import FittedReference
from smoothplan.chains.grid import GridReference
from smoothplan.chains.maker import ReferenceMaker, default_reference, spend
from smoothplan.chains.shared import SharedReference
from smoothplan.models.model import Oracle, States
from smoothplan.theory.backups import HardMax, LogSumExp
from tests.chains.worlds import counted, simulated, small
from tests.common import vectorised


@pytest.mark.parametrize("dimensions", [1, 7])
@pytest.mark.parametrize("calls", [1, 7, 3_000])
def test_a_default_of_floats_is_fitted_and_keeps_its_budget(calls: int, dimensions: int) -> None:
    model, made = counted(dimensions, single=False)
    reference = default_reference(model, HardMax(), calls=calls)
    assert isinstance(reference, FittedReference)
    assert calls - 3 < reference.calls == sum(made) <= calls  # all three actions of a state
    assert reference.q(np.zeros((1, dimensions))).shape == (1, 3)
    assert f"vectors of {dimensions} numbers" in repr(reference)


def test_a_default_of_a_compiled_simulator_is_a_grid_if_calls_suffice() -> None:
    model = sp.models.cart_pole()
    for calls, kind in ((10_000, GridReference), (100, FittedReference)):
        oracle = Oracle(model, 1)
        reference = default_reference(model, HardMax(), calls=calls, oracle=oracle)
        assert isinstance(reference, kind)
        assert 0 < reference.calls == oracle.calls <= calls
        assert ("too few for a grid" in repr(reference)) == (kind is FittedReference)


@pytest.mark.parametrize("calls", [1, 7, 500, 20_000])
def test_a_default_of_states_that_recur_keeps_its_budget(calls: int) -> None:
    for model in (small(), vectorised(small())):
        reference = default_reference(model, LogSumExp(0.1), calls=calls, seed=1)
        assert isinstance(reference, SharedReference)
        assert reference.calls == calls
        reference.improve(13)
        assert reference.calls == calls + 13
    assert "states of whole numbers recur" in repr(reference)


def test_whole_numbers_that_do_not_recur_are_fitted() -> None:
    made: list[int] = []

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        made.append(len(states))
        return states + rng.integers(-1000, 1000, states.shape), np.zeros(len(states))

    model = simulated(step, actions=2, max_successors=None, initial_state=np.zeros(2, dtype=np.int64))
    reference = default_reference(model, HardMax(), calls=5_000)
    assert isinstance(reference, FittedReference)
    assert "calls discovered a new state" in repr(reference)
    assert 4_998 <= sum(made) <= 5_000  # what it took to find out included


@pytest.mark.parametrize("fail_at", [20, 3_000])
def test_calls_are_known_where_the_making_is_interrupted(fail_at: int) -> None:
    """An oracle from outside counts the call that did not come back, too."""
    model, made = counted(2, single=False, fail_at=fail_at)
    oracle = Oracle(model, 5)
    with pytest.raises(KeyboardInterrupt):
        default_reference(model, HardMax(), calls=10_000, oracle=oracle)
    assert oracle.calls == sum(made) > fail_at


def test_a_budget_is_calls_or_time_or_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion takes a second for each 64 calls, on a clock of the test's own."""
    now, made = 0.0, list[int]()
    monkeypatch.setattr("smoothplan.chains.maker.working_time", lambda: now)

    def work(calls: int) -> None:
        nonlocal now
        made.append(calls)
        now += calls / 64.0

    for calls, until, portions in (
        (500, None, [500]),
        (0, None, []),
        (None, 15.0, [16, 32, 64, 128, 256]),  # the next one would not end before
        (100, 16.0, [16, 32, 52]),
        (500, 0.0, []),
    ):
        now, made[:] = 0.0, []
        spend(work, lambda: sum(made), calls=calls, until=until)
        assert made == portions


def test_a_compiled_simulator_has_a_grid_also_if_time_is_the_limit() -> None:
    maker = ReferenceMaker(sp.models.mountain_car(), HardMax())
    maker.make(np.array([-0.5, 0.0]), until=working_time() + 0.1)
    assert isinstance(maker.reference, GridReference)


def test_a_maker_counts_its_own_calls_and_goes_on_where_it_was_saved() -> None:
    model, made = counted(2, single=False)
    maker, again = ReferenceMaker(model, HardMax(), seed=3), ReferenceMaker(model, HardMax(), seed=3)
    assert (maker.reference, maker.calls) == (None, 0)
    maker.make(np.zeros(2), calls=900)
    again.restore(np.zeros(2), maker.saved())
    assert maker.calls == again.calls == sum(made)
    assert 890 <= maker.calls <= 900
    for one in (maker, again):
        one.improve(calls=600)
    for name, array in maker.saved().items():
        np.testing.assert_array_equal(array, again.saved()[name])
    given = SharedReference(small(), HardMax())
    given.improve(50)
    taught = ReferenceMaker(small(), HardMax(), given)
    taught.make(0, calls=100)  # there is nothing to make
    taught.improve(calls=30)
    given.improve(20)  # by somebody else
    assert (taught.calls, given.calls) == (30, 100)


@pytest.mark.parametrize(
    ("initial_state", "complaint"), [(np.zeros(0), r"shape \(0,\).*Give a critic"), (None, "declares no initial_state")]
)
def test_misuse_is_named(initial_state: Any, complaint: str) -> None:
    model = simulated(lambda *_: (), initial_state=initial_state)
    with pytest.raises(ValueError, match=complaint):
        default_reference(model, HardMax())
