"""The one shape of a run, for every planner: seeds, limits, ends, results, and errors that name what is wrong."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.chains.reference import TabularReference
from smoothplan.confidence.means import leaders
from smoothplan.models.model import States
from smoothplan.run.plan import outward
from smoothplan.run.records import EngineName, GapDetails, Planner, Status
from smoothplan.theory.backups import Backup
from tests.common import Counter, content, ending, holds, identified, intervals_of, vectorised

SOFT, HARD = sp.LogSumExp(1.0), sp.HardMax()

SURE = 1e-7
"""A δ at which none of the intervals in this file fails."""


def around(backup: Backup, **options: Any) -> Planner:
    """A planner around a poor reference."""
    table = np.random.default_rng(0).normal(size=(12, 2))
    return sp.ReferenceCruiser(backup, TabularReference(table), **options)


MAKERS: dict[str, Callable[..., Planner]] = {
    "sparse": lambda **options: sp.SparseSampling(HARD, **options),
    "first order": lambda **options: sp.SmoothCruiser(SOFT, **options),
    "second order": lambda **options: sp.SecondOrderSmoothCruiser(SOFT, **options),
    "published": lambda **options: sp.SecondOrderSmoothCruiser(SOFT, variant="paper", **options),
    "gape": lambda **options: sp.OTGapE(SOFT, **options),
    "mdp-gape": lambda **options: sp.MDPGapE(HARD, sampling="trajectories", **options),
    "gap cruiser": lambda **options: sp.OTGapCruiser(SOFT, **options),
    "uct": lambda epsilon, delta=0.0: sp.UCT(epsilon=epsilon, depth=4),
    "reference": lambda **options: around(SOFT, **options),
    "made reference": lambda **options: sp.ReferenceCruiser(SOFT, order=1, **options),
}

ENGINES: tuple[EngineName, ...] = ("auto", "batched")


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[..., Planner]:
    maker: Callable[..., Planner] = MAKERS[request.param]
    return maker


def model_for(planner: Planner) -> sp.TabularModel:
    """Twelve states, some of which end; without ends and with rewards of 0 and 1 where constants are as published."""
    if getattr(planner, "variant", "certified") == "paper":
        return sp.models.garnet(states=12, actions=2, branching=2, discount=0.3, seed=1, reward_kind="bernoulli")
    return ending(2, 0.3, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_seed_decides_and_nothing_else(
    make: Callable[..., Planner], engine: EngineName, capsys: pytest.CaptureFixture[str]
) -> None:
    planner = make(epsilon=0.01)
    if engine == "batched" and isinstance(planner, sp.ReferenceCruiser):
        planner = replace(planner, epsilon=0.1)
    model = model_for(planner)

    def run(seed: int, **options: Any) -> dict[str, Any]:
        return content(sp.plan(planner, model, 0, seed=seed, max_calls=3_000, engine=engine, **options))

    one = run(1)
    assert one == run(1)
    assert one == run(1, progress=True)
    assert capsys.readouterr().out == ""
    assert len({str(run(seed)["q"]) for seed in range(5)}) == 5
    if engine == "auto":  # threads, for compiled engines
        assert one == run(1, workers=2) == run(1, workers=3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("max_calls", [0, 50, 2_000])
def test_the_fields_of_a_result_agree(make: Callable[..., Planner], engine: EngineName, max_calls: int) -> None:
    planner = make(epsilon=0.05)
    model = model_for(planner)
    result = sp.plan(planner, model, 0, seed=3, max_calls=max_calls, engine=engine)
    span = sp.curvature.value_interval(model, planner.backup)
    assert span[0] - 1e-9 <= result.interval[0] <= result.value <= result.interval[1] <= span[1] + 1e-9
    assert result.samples <= result.calls
    assert result.q.shape == result.policy.shape == (model.actions,)
    np.testing.assert_array_equal(result.policy, planner.backup.policy(result.q[None], np.zeros(1, dtype=np.int64))[0])
    assert (result.epsilon, result.delta, result.seed) == (0.05, planner.delta, 3)
    assert result.status in get_args(Status)
    if result.q_intervals is not None:
        assert (result.q_intervals[:, 0] <= result.q_intervals[:, 1]).all()
    if isinstance(result.details, GapDetails):
        assert result.details.action_calls.sum() == result.calls
        agrees(result, result.details)
    else:
        assert result.action == result.q.argmax() or isinstance(planner, sp.UCT)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    text = result.to_json()
    fields = json.loads(text, parse_constant=refuse)
    assert "\n" not in text
    assert set(fields) == {*sp.PlanResult.__dataclass_fields__}
    assert (result.bonus is None) == (planner.backup.temperature == 0.0)
    if result.bonus is not None:
        regularised, ordinary = (sp.exact.solve(model, backup, 1e-10).values[0] for backup in (planner.backup, HARD))
        assert result.bonus[0] - 1e-9 <= regularised - ordinary <= result.bonus[1] + 1e-9
    assert (fields["details"] is None) == (result.details is None)
    for name in ("q", "policy"):
        assert fields[name] == getattr(result, name).tolist()


def agrees(result: sp.PlanResult, found: GapDetails) -> None:
    """The gap follows from the intervals, unless more is proved of differences."""
    low, high = intervals_of(result).T
    assert found.challenger not in (None, result.action)
    gap = leaders(*intervals_of(result).T)[2]
    assert found.gap <= gap + 1e-9
    if found.gap >= gap - 1e-9:
        assert low[result.action] == low.max()
    assert ((low <= result.q) & (result.q <= high)).all()
    assert (found.pairs > 0) == (result.calls > 0 and found.states > 0)
    assert 0 <= found.pairs <= 2 * found.states
    assert (found.bytes > 0) == (found.states > 0)
    assert 1 <= len(found.history) <= 200
    assert found.history[-1].calls == result.calls
    assert outward(found.history[-1].intervals).tolist() == intervals_of(result).tolist()
    for earlier, later in pairwise(found.history):
        assert earlier.calls < later.calls
        assert (earlier.intervals[:, 0] <= later.intervals[:, 0]).all()
        assert (later.intervals[:, 1] <= earlier.intervals[:, 1]).all()


@pytest.mark.parametrize("max_calls", [0, 1, 2, 100, 1_000, 20_000])
def test_a_limit_on_calls_is_never_exceeded(make: Callable[..., Planner], max_calls: int) -> None:
    """Whatever is prepared, tried or improved on the way. Every call is counted once."""
    planner = make(epsilon=0.01, delta=SURE)
    model = model_for(planner)
    counter = Counter(model)
    result = sp.plan(planner, vectorised(model, counter), max_calls=max_calls)
    assert counter.calls == result.calls <= max_calls
    assert result.status != "max_seconds"
    assert holds(result, model, planner.backup)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_time_is_not_enough_for_much(make: Callable[..., Planner], engine: EngineName) -> None:
    planner = make(epsilon=0.001, delta=SURE)
    model = model_for(planner)
    result = sp.plan(planner, model, 0, max_seconds=0, max_calls=10**9, engine=engine)
    assert result.status == "max_seconds"
    assert holds(result, model, planner.backup)


def test_a_limit_on_time_stops_a_slow_simulator(make: Callable[..., Planner]) -> None:
    planner = make(epsilon=0.001, delta=SURE)
    model = model_for(planner)
    counter = Counter(model)

    def slow(states: States, actions: Any, rng: np.random.Generator) -> Any:
        time.sleep(0.002)
        return counter(states, actions, rng)

    result = sp.plan(planner, vectorised(model, slow), max_seconds=0.1, max_calls=10**8)
    assert result.status == "max_seconds"
    assert result.calls == counter.calls  # of chunks that were under way, too
    assert holds(result, model, planner.backup)


@pytest.mark.parametrize("after", [0, 10, 300])
def test_an_interrupt_returns_what_there_is(make: Callable[..., Planner], after: int) -> None:
    planner = make(epsilon=0.001, delta=SURE)
    model = model_for(planner)
    counter = Counter(model, interrupted_after=after)
    result = sp.plan(planner, vectorised(model, counter), max_calls=10**7)
    assert result.status == "interrupted"
    assert result.calls == counter.calls
    assert holds(result, model, planner.backup)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_returns_what_there_is(number: signal.Signals) -> None:
    model, sent = model_for(MAKERS["gape"](epsilon=0.001)), list[int]()
    counter = Counter(model)

    def step(states: States, actions: Any, rng: np.random.Generator) -> Any:
        if counter.calls > 100 and not sent:
            sent.append(counter.calls)
            os.kill(os.getpid(), number)
        return counter(states, actions, rng)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores interrupts
    try:
        result = sp.plan(MAKERS["gape"](epsilon=0.001, delta=SURE), vectorised(model, step), max_calls=10**7)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.status, len(sent)) == ("interrupted", 1)
    assert holds(result, model, SOFT)


@pytest.mark.parametrize("engine", ENGINES)
def test_another_process_finds_the_same(engine: EngineName) -> None:
    """Without scipy, which the library must not need."""
    script = """
import sys
sys.modules["scipy"] = None
import json
from tests.contract.test_every_planner import found_by_all
print(json.dumps(found_by_all(sys.argv[1])))
"""
    command = [sys.executable, "-c", script, engine]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == found_by_all(engine)


def found_by_all(engine: EngineName) -> list[dict[str, Any]]:
    """What every planner finds with a seed."""
    planners = [make(epsilon=0.05) for make in MAKERS.values()]
    return [content(sp.plan(each, model_for(each), 0, seed=11, max_calls=1_000, engine=engine)) for each in planners]


def test_a_terminal_state_is_worth_nothing(make: Callable[..., Planner]) -> None:
    result = sp.plan(make(epsilon=0.05), ending(2, 0.95, 1), 3, max_calls=10)
    assert (result.value, result.interval, result.calls, result.samples) == (0.0, (0.0, 0.0), 0, 0)
    assert (result.status, result.action, result.q_intervals, result.details) == ("terminal", None, None, None)
    assert result.q.tolist() == [0.0, 0.0]


def test_rewards_that_never_differ_need_no_call() -> None:
    model = sp.TabularModel(np.ones((1, 2, 1)), np.zeros((1, 2, 1), dtype=np.int64), [[2.0, 2.0]], discount=0.5)
    planners: list[Planner] = [sp.SparseSampling(HARD, 1e-9), sp.OTGapE(HARD, 0.0)]
    for planner in (*planners, sp.OTGapCruiser(HARD, 0.0), sp.OTGapCruiser(HARD, 1e-9)):
        result = sp.plan(planner, model, max_calls=10)
        assert (result.value, result.calls, result.status) == (4.0, 0, "converged")
        assert result.interval == pytest.approx((4.0, 4.0), abs=1e-14)


def test_an_accuracy_that_needs_no_sample() -> None:
    model = ending(2, 0.3, 1)
    for name in ("sparse", "first order", "second order", "gape", "gap cruiser"):
        planner = MAKERS[name](epsilon=100.0)
        result = sp.plan(planner, model, 0)
        assert (result.status, result.calls) == ("converged", 0)
        assert result.interval == pytest.approx(sp.curvature.value_interval(model, planner.backup))
        assert result.value == pytest.approx(sum(result.interval) / 2.0, abs=0.5)


@pytest.mark.parametrize("kind", [sp.OTGapE, sp.OTGapCruiser])
def test_the_best_action_may_be_proved(kind: Any) -> None:
    """With ε = 0: at once where there is one action, else when its lower bound exceeds all other upper bounds."""
    alone = sp.plan(kind(SOFT, 0.0), sp.models.garnet(6, 1, 2, 0.99, 0), 0, max_calls=10)
    assert (alone.status, alone.action, alone.calls) == ("converged", 0, 0)
    assert (identified(alone).challenger, identified(alone).gap) == (None, 0.0)
    shape = (1, 2, 1)
    coins = sp.TabularModel(
        np.ones(shape), np.zeros(shape, dtype=np.int64), [[0.2, 0.8]], discount=0.0, reward_kind="bernoulli"
    )
    proved = sp.plan(kind(HARD, 0.0, SURE), coins, 0, max_calls=100_000)
    assert (proved.status, proved.action) == ("converged", 1)
    assert identified(proved).gap <= 0.0
    assert proved.calls < (1_000 if kind is sp.OTGapE else 20_000)
    with pytest.raises(ValueError, match=r"epsilon must be greater than 0 .*max_calls"):
        sp.plan(kind(HARD, 0.0), coins, 0)


def test_errors_of_a_simulator_arrive_with_their_message(make: Callable[..., Planner]) -> None:
    """Together with the valid result so far."""
    planner = make(epsilon=0.01, delta=SURE)
    model = model_for(planner)
    counter = Counter(model)

    def breaking(states: States, actions: Any, rng: np.random.Generator) -> Any:
        if counter.calls > 500:
            raise OSError("the licence server is down")
        return counter(states, actions, rng)

    with pytest.raises(sp.SimulatorError, match="the simulator raised OSError: the licence server is down") as caught:
        sp.plan(planner, vectorised(model, breaking), max_calls=10**6)
    assert caught.value.partial.status == "interrupted"
    assert caught.value.partial.calls > counter.calls > 500  # the call that failed was made, too
    assert holds(caught.value.partial, model, planner.backup)


def test_an_engine_that_cannot_serve_is_named(make: Callable[..., Planner]) -> None:
    planner = make(epsilon=0.05)
    with pytest.raises(ValueError, match=r"engine 'compiled' needs .* got \w+.*: use 'batched'"):
        sp.plan(planner, vectorised(model_for(planner)), max_calls=10, engine="compiled")


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "fine", None])
def test_bad_accuracies_and_probabilities_are_named(make: Callable[..., Planner], value: Any) -> None:
    for name in ("epsilon", *(["delta"] if make(epsilon=0.1).delta > 0.0 else [])):
        with pytest.raises((ValueError, TypeError), match=f"{name} must be .*{value!r}"):
            make(**{"epsilon": 0.1, name: value})


def test_planners_are_frozen_values(make: Callable[..., Planner]) -> None:
    planner: Any = make(epsilon=0.1)
    with pytest.raises(FrozenInstanceError):
        planner.epsilon = 0.2
    assert replace(planner, epsilon=0.2).epsilon == 0.2
    if not isinstance(planner, sp.ReferenceCruiser):  # its reference may have a state
        assert planner == make(epsilon=0.1) != make(epsilon=0.2)
        assert hash(planner) == hash(make(epsilon=0.1))


def test_numbers_may_be_of_another_type(make: Callable[..., Planner]) -> None:
    half = np.float32(0.5)
    planner = make(epsilon=half, delta=half)
    assert (type(planner.epsilon), type(planner.delta)) == (float, float)
    assert json.loads(sp.plan(planner, model_for(planner), 0, max_calls=100).to_json())["epsilon"] == 0.5


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("gape", {"horizon": 3, "successors": 2}),
        ("gap cruiser", {"order": 1}),
        ("reference", {"order": 2, "horizon": 10, "pairs": 4}),
    ],
)
def test_counts_may_be_written_as_floats(name: str, counts: dict[str, int]) -> None:
    planner = MAKERS[name](epsilon=0.1, **{each: float(count) for each, count in counts.items()})
    assert [repr(getattr(planner, each)) for each in counts] == [repr(count) for count in counts.values()]


def test_only_a_schedule_has_a_forecast(make: Callable[..., Planner]) -> None:
    planner = make(epsilon=0.1)
    model = model_for(planner)
    if hasattr(planner, "schedule"):
        assert sp.forecast(planner, model).calls >= 0
    else:
        with pytest.raises(TypeError, match=f"{type(planner).__name__} has no forecast: .*; limit it with max_calls"):
            sp.forecast(planner, model)
