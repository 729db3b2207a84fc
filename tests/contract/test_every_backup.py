"""The promises of every backup, and planners with backups that are no mixtures of softmaxes.

A new class in `smoothplan.backups` is found and tested by itself. Planners are compared with the exact solver and with
compiled code.
"""

import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan import specs
from smoothplan.base.stopping import Stopped
from smoothplan.bounds.rounds import Rounds
from smoothplan.chains.batched import BatchedChains, largest_gap
from smoothplan.chains.cruiser import bias
from smoothplan.models.model import Oracle
from smoothplan.recursive.batched import BatchedEngine
from smoothplan.recursive.level import Level
from smoothplan.recursive.schedule import Schedule
from smoothplan.theory.backups import Backup, line_cost
from smoothplan.theory.curvature import Problem
from tests.common import begun, content, dense, diagnosed, holds, identified, vectorised
from tests.own_backups import Called, TwoTemperatures

FALSE_ALARM = 1e-6
"""δ of every run here, and so how often its intervals may fail."""

BACKUPS: dict[str, Backup] = {"sparse": sp.Tsallis(0.5), "two": TwoTemperatures(sp.LogSumExp(0.4), sp.LogSumExp(1.0))}


def small(discount: float = 0.2, kind: Any = "bernoulli") -> sp.TabularModel:
    return sp.models.garnet(states=25, actions=3, branching=2, discount=discount, seed=4, reward_kind=kind)


def near(model: sp.TabularModel, backup: Backup, size: float) -> sp.TabularReference:
    """A reference whose error has the range `size`."""
    noise = np.random.default_rng(1).random((model.states, model.actions))
    noise[:, 0], noise[:, 1] = 0.0, 1.0
    return sp.TabularReference(sp.exact.solve(model, backup).q + size * noise)


# Every backup of the library


@pytest.mark.parametrize("name", specs.BACKUPS)
@pytest.mark.parametrize("actions", [2, 5])
def test_it_is_what_it_declares(name: str, actions: int) -> None:
    backup = specs.build_backup(name, actions)
    assert sp.check_backup(backup, actions).points > 0
    copy = pickle.loads(pickle.dumps(backup))
    q = np.random.default_rng(0).standard_normal((20, actions))
    np.testing.assert_array_equal(copy.value(q), backup.value(q))


@pytest.mark.parametrize("name", specs.BACKUPS)
@pytest.mark.parametrize("planner", ["ot-gape:epsilon=0.1", "sparse-sampling:epsilon=0.3"])
def test_planners_for_any_backup_find_its_exact_value(name: str, planner: str) -> None:
    backup = specs.build_backup(name, 3)
    result = sp.plan(specs.build_planner(f"{planner},delta={FALSE_ALARM}", backup), small(), state=0, seed=1)
    assert result.status == "converged"
    assert holds(result, small(), backup)


# Recursive planners

RECURSIVE: dict[str, Callable[[Backup], Any]] = {
    "sparse sampling": lambda backup: sp.SparseSampling(backup, 0.25, FALSE_ALARM),
    "smooth cruiser": lambda backup: sp.SmoothCruiser(backup, 0.15, FALSE_ALARM),
    "debiased cruiser": lambda backup: sp.DebiasedCruiser(backup, 0.05, FALSE_ALARM),
    "gap cruiser": lambda backup: sp.OTGapCruiser(backup, 0.15, FALSE_ALARM),
}


@pytest.mark.parametrize("name", BACKUPS)
@pytest.mark.parametrize("planner", RECURSIVE)
def test_recursive_planners(planner: str, name: str) -> None:
    model, backup = small(), BACKUPS[name]
    result = sp.plan(RECURSIVE[planner](backup), model, state=0, seed=1)
    assert result.status == "converged"
    assert holds(result, model, backup)
    assert result.calls > 100
    # A simulator without a table runs on the same engine, and so with the same bits.
    assert content(sp.plan(RECURSIVE[planner](backup), vectorised(model), seed=1)) == content(result)


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("inner", [sp.LogSumExp(0.5), sp.OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.4)])
def test_the_batched_engine_draws_the_same_from_a_backup_that_it_calls(inner: Any, printed: bool) -> None:
    """The random numbers are the same, and so are the samples up to rounding; a mixture shows its softmaxes."""
    model = small()
    problem = Problem.of(model, inner)
    levels = (
        Level("constant"),
        Level("plug-in", samples=3, reference=0),
        Level("order-1", samples=2, reference=1, linear=1, printed=printed),
        Level("order-1", samples=2, reference=2, linear=2, printed=printed),
    )
    schedule = Schedule(problem, levels, 1, 0.1, 0.1)
    one, two = (
        BatchedEngine(schedule, backup).values(Oracle(model, 3), 0, np.array([0.1, 0.5, 0.2]), 500)
        for backup in (inner, Called(inner))
    )
    assert one.moments == pytest.approx(two.moments, rel=1e-12)
    assert one.squares > 0.0


@pytest.mark.parametrize("name", BACKUPS)
@pytest.mark.parametrize("engine", ["auto", "batched"])
def test_chains_around_a_reference(engine: Any, name: str) -> None:
    model, backup = small(0.8), BACKUPS[name]
    planner = sp.ReferenceCruiser(
        backup, near(model, backup, 0.2), order=1, epsilon=0.2, delta=FALSE_ALARM, error_range=0.2
    )
    result = sp.plan(planner, model, state=0, seed=2, engine=engine, max_calls=2_000_000)
    assert holds(result, model, backup)
    assert diagnosed(result).certified
    # What the error range adds is no more than the second derivative allows.
    first = backup.derivatives(3)[0] / 2.0 * 0.2**2 / (1.0 - 0.8)
    low, high = result.interval
    assert high - low < 2.0 * 0.2 + first


@pytest.mark.parametrize("size", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("name", BACKUPS)
def test_the_loss_of_a_reference_is_within_its_bound(name: str, size: float) -> None:
    """V − V^π for π = ∇F(Q̂), by linear algebra, is between 0 and the bound for order 1."""
    model, backup = small(0.8), BACKUPS[name]
    policy = backup.policy(near(model, backup, size).table)
    loss = sp.exact.solve(model, backup, 1e-10).values - sp.exact.evaluate(model, policy, backup, 1e-10).values
    low, high = bias(1, size, Problem.of(model, backup), 0.0)
    assert high == pytest.approx(backup.derivatives(3)[0] / 2.0 * size**2 / (1.0 - 0.8))
    assert low - 1e-6 <= loss.min()
    assert loss.max() <= high + 1e-6


def test_batched_chains_sample_the_policy_of_any_backup() -> None:
    model, backup = small(0.7), sp.Tsallis(0.5)
    q = near(model, backup, 0.5).table
    chains = BatchedChains(model, backup, lambda states: q[states])
    horizon, count = 6, 60_000
    policy = backup.policy(q)
    gain = (policy * (model.expected_rewards + backup.value(q)[:, None] - q)).sum(axis=1)
    probabilities, _, ends = dense(model)
    moves = np.einsum("sk,skt->st", policy, probabilities - ends)
    exact = sum(np.linalg.matrix_power(0.7 * moves, step) @ gain for step in range(horizon))[0]
    sums = chains.values(Oracle(model, 5), 0, count, horizon)
    mean = sums.total / count
    error = np.sqrt((sums.squares / count - mean**2) / count)
    assert abs(mean - exact) <= 5.0 * error  # which happens by chance with a probability of 6e-7
    assert 0.0 < error < 0.01
    with pytest.raises(
        ValueError, match=r"a correction of second order needs a mixture .*, got Tsallis\(.*sample values"
    ):
        chains.corrections(Oracle(model, 5), 0, 10, 2, horizon)


# Searches by bounds


@pytest.mark.parametrize("engine", ["auto", "batched"])
@pytest.mark.parametrize("name", BACKUPS)
def test_a_search_with_any_backup(name: str, engine: Any) -> None:
    model, backup = small(0.5, "deterministic"), BACKUPS[name]
    result = sp.plan(sp.OTGapE(backup, 0.05, FALSE_ALARM), model, state=1, seed=3, engine=engine)
    assert result.status == "converged"
    assert holds(result, model, backup, state=1)
    assert identified(result).gap <= 0.05
    assert result.calls > 200


@pytest.mark.parametrize("engine", ["auto", "batched"])
@pytest.mark.parametrize("options", [{}, {"sampling": "trajectories"}, {"walk": 0.5}, {"horizon": 3, "tail": "zero"}])
def test_a_search_finds_the_same_with_a_backup_that_it_calls(
    options: dict[str, Any], engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walks draw the same random numbers, and values differ by rounding: so do the intervals, and no call is other.

    A backup that is called has walks only.
    """
    monkeypatch.setattr(Rounds, "take_over", lambda *_: False)
    model, found = small(0.6), []
    for backup in (sp.LogSumExp(0.3), Called(sp.LogSumExp(0.3))):
        planner = sp.OTGapE(backup, 0.01, 0.1, **options)
        found.append(sp.plan(planner, model, state=0, seed=3, engine=engine, max_calls=3_000))
    one, two = found
    assert one.calls == two.calls > 2_000
    assert one.interval == pytest.approx(two.interval, abs=1e-10)
    assert one.q_intervals == pytest.approx(two.q_intervals, abs=1e-10)
    assert identified(one).states == identified(two).states > 5


@pytest.mark.parametrize("engine", ["auto", "batched"])
def test_a_search_calls_a_backup_at_the_right_state(engine: Any) -> None:
    model = small(0.5, "deterministic")
    priors = np.random.default_rng(6).dirichlet(np.full(3, 0.3), size=model.states)
    backup = Called(sp.OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.3, prior=priors))
    result = sp.plan(sp.OTGapE(backup, 0.05, FALSE_ALARM), model, state=2, seed=1, engine=engine, max_calls=20_000)
    assert result.status == "converged"
    assert holds(result, model, backup.inner, state=2)


@pytest.mark.parametrize("error", [RuntimeError("the critic is gone"), KeyboardInterrupt(), Stopped("interrupted")])
@pytest.mark.parametrize("engine", ["auto", "batched"])
def test_an_error_of_a_backup_ends_a_search_and_proves_nothing(engine: Any, error: BaseException) -> None:
    model, inner = small(0.5), sp.Tsallis(0.5)
    backup = Called(inner, error, broken_after=500)
    search = begun(sp.OTGapE(backup, 0.01), model, engine)
    with pytest.raises(type(error)):
        search.explore(0.01, 100_000, 10**6)
    assert backup.calls[0] == 501
    low, high = search.graph.low[0], search.graph.high[0]
    assert low <= sp.exact.solve(model, inner).values[0] <= high
    # It goes on where the backup does.
    backup.calls[0] = 0
    before, calls = high - low, search.oracle.calls
    search.explore(0.01, calls + 50, 50)
    assert search.oracle.calls > calls
    assert search.graph.high[0] - search.graph.low[0] <= before


def test_a_value_that_is_no_number_is_named() -> None:
    backup = Called(sp.Tsallis(0.5), np.nan, broken_after=100)
    with pytest.raises(ValueError, match="value of Called must be finite, got nan"):
        sp.plan(sp.OTGapE(backup, 0.01), small(), state=0, max_calls=10_000)


def test_a_slow_backup_keeps_to_the_time_limit() -> None:
    class Slow(Called):
        def value(self, q: Any, states: Any = None) -> Any:
            time.sleep(0.002)
            return super().value(q, states)

    result = sp.plan(sp.OTGapE(Slow(sp.Tsallis(0.5)), 0.001), small(0.6), state=0, max_seconds=1.0)
    assert result.status == "max_seconds"
    assert holds(result, small(0.6), sp.Tsallis(0.5))


# References made from the simulator


@pytest.mark.parametrize("with_table", [True, False])
def test_a_shared_reference_with_any_backup(with_table: bool) -> None:
    model, backup = small(0.7, "deterministic"), sp.Tsallis(0.5)
    shared = sp.SharedReference(model if with_table else vectorised(model), backup, seed=1, delta=FALSE_ALARM)
    shared.improve(60_000)
    states = np.arange(model.states)[: shared.states]
    q = sp.exact.solve(model, backup).q[states]
    found = shared.q(states)
    assert np.abs(found - q).max() < 0.1
    assert (np.ptp(found - q, axis=1) <= shared.error_range(states)).all()


def test_a_grid_reference_with_any_backup() -> None:
    """On nodes that states never leave the grid is exact: here for a backup that is called, as for one that is not."""

    def step(states: Any, actions: Any, rng: Any) -> tuple[Any, Any]:
        return np.clip(states + 0.25 * (actions - 1)[:, None], -1.0, 1.0), 1.0 - states[:, 0] ** 2 / 2.0

    known: dict[str, Any] = {"reward_range": (0.0, 1.0), "reward_kind": "deterministic", "max_successors": 1}
    model = sp.VectorModel(step, actions=3, discount=0.8, initial_state=np.zeros(1), **known)
    nodes, inner = np.linspace(-1.0, 1.0, 9)[:, None], sp.LogSumExp(0.3)
    one, two, sparse = (
        sp.GridReference.build(model, backup, low=[-1.0], high=[1.0], cells=8).q(nodes)
        for backup in (inner, Called(inner), sp.Tsallis(0.3))
    )
    np.testing.assert_allclose(one, two, atol=2e-3)
    assert np.abs(sparse - one).max() > 0.05


def test_nothing_is_cut_off_where_little_is_known_of_a_policy() -> None:
    model, backup = small(), sp.Tsallis(0.01)
    problem = Problem.of(model, backup)
    assert largest_gap(backup, problem, None, made=False) > problem.action_gap


# What cannot serve them says so

NEEDS = r"needs a mixture of softmaxes, such as LogSumExp or OptimalTransport, got Tsallis\(temperature=0\.5.*\): use "


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda b: sp.SecondOrderSmoothCruiser(b, 0.1), f"SecondOrderSmoothCruiser {NEEDS}DebiasedCruiser"),
        (lambda b: sp.SmoothCruiser(b, 0.1, variant="paper"), f"the printed SmoothCruiser {NEEDS}variant='certified'"),
        (lambda b: sp.ReferenceCruiser(b, epsilon=0.1), f"ReferenceCruiser of order 2 {NEEDS}order=1"),
        (lambda b: sp.UCT(b), r"UCT is for the hard maximum, got Tsallis\(temperature=0\.5"),
        (lambda b: sp.MDPGapE(b, epsilon=0.1), r"MDPGapE is for the hard maximum, got Tsallis\(temperature=0\.5"),
        (lambda b: sp.plan(sp.SmoothCruiser(b, 0.1), small(), 0, engine="compiled"), "'compiled' needs .* Tsallis"),
        (lambda b: sp.plan(sp.OTGapE(b, 0.1), small(), 0, engine="compiled"), "'compiled' needs .* Tsallis"),
    ],
)
def test_what_needs_a_mixture_says_so(call: Callable[[Backup], Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call(sp.Tsallis(0.5))


def test_a_level_of_order_2_is_refused_by_the_engine() -> None:
    model, backup = small(), sp.Tsallis(0.5)
    levels = (Level("constant"), Level("order-2", samples=2, reference=0, linear=0, quadratic=0, pairs=2))
    with pytest.raises(ValueError, match=f"a level of order 2 {NEEDS}levels of order 1"):
        BatchedEngine(Schedule(Problem.of(model, sp.LogSumExp(0.5)), levels, 1, 0.1, 0.1), backup)


def test_a_backup_without_derivatives_is_for_plug_in_levels() -> None:
    backup = Called(sp.HardMax())
    with pytest.raises(ValueError, match=r"SmoothCruiser needs a smooth backup, got Called\(HardMax\(\)\)"):
        sp.SmoothCruiser(backup, 0.1)
    with pytest.raises(ValueError, match=r"UCT is for the hard maximum, got Called\(HardMax\(\)\)"):
        sp.UCT(backup)
    model = small()
    result = sp.plan(sp.SparseSampling(backup, 0.25, FALSE_ALARM), model, state=0)
    assert result.status == "converged"
    assert holds(result, model, backup)


def test_debiased_levels_serve_backups_with_enough_derivatives() -> None:
    """Three derivatives are enough for a certificate; with one, as of Tsallis, there are levels up to order 1."""
    smooth, sparse = (
        sp.DebiasedCruiser(backup, 0.01).schedule(small(0.2)) for backup in (TwoTemperatures(), sp.Tsallis(1.0))
    )
    assert any(level.debias > 0 for level in smooth.levels)
    assert not any(level.debias > 0 for level in sparse.levels)
    kinds = {level.kind for level in sparse.levels}
    assert "order-1" in kinds
    assert kinds <= {"constant", "plug-in", "order-1"}
    assert sparse.calls < sp.SparseSampling(sp.Tsallis(1.0), 0.01).schedule(small(0.2)).calls


def test_what_a_backup_lacks_is_named() -> None:
    class Old:
        temperature = 1.0

        def __repr__(self) -> str:
            return "Old()"

    with pytest.raises(TypeError, match=r"backup must be one, such as .*, got Old\(\), which has no at_zero_range"):
        sp.SmoothCruiser(Old(), 0.1)  # type: ignore[arg-type]
