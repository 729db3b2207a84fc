"""The study `critic`: a small run whose claims hold, and claims that notice what is wrong."""

import numpy as np
import pytest

from smoothplan.models.zoo import garnet
from smoothplan.theory import exact
from smoothplan.theory.backups import LogSumExp
from studies.base import Row
from studies.critic import STUDY, ChainMeans, Settings, critic, most_misses
from studies.findings import Findings
from studies.tests.studied import Change, changed, small_run, verdict

TINY = Settings(
    problems=((0.99, 0.3),),
    ranges=(0.005, 0.02, 0.25),
    table_problems=((0.99, 0.3),),
    table_range=0.25,
    models=1,
    sampled_range=0.25,
    sampled_runs=1,
    sampled_calls=(300_000,),
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Findings]:
    return small_run(STUDY, TINY, tmp_path_factory.mktemp("critic"))


def test_it_runs(small: tuple[list[Row], Findings]) -> None:
    """The seed is fixed, so that what holds once always holds."""
    claims = small[1].evidence.claims
    assert all(claim.holds for claim in claims), [claim.verdict for claim in claims]
    assert len(claims) == 8


def scaled(order: int, power: float) -> Change:
    """Errors of an order that grow by another power of r."""
    names = [f"order_{order}_{end}" for end in ("low", "high")]
    return lambda s, r: {n: r[n] * (s["error_range"] / 0.02) ** power for n in names}


@pytest.mark.parametrize(
    ("kind", "change", "quantity"),
    [
        ("exact", scaled(1, -1.0), "error of order 1 against"),
        ("exact", scaled(2, -1.0), "error of order 2 against"),
        ("exact", scaled(2, 1.0), "error of order 2 against"),
        ("exact", lambda _, r: {"order_1_low": -1e-3}, "error of order 1 over"),
        ("exact", lambda _, r: {"order_2_high": 10.0 * r["order_1_high"]}, "error of order 2 over"),
        ("exact", lambda _, r: {"order_2_high": 0.5 * r["order_1_high"]}, "ratio of the errors"),
        ("sampled", lambda _, r: {"high": r["truth"] - 1e-9}, "intervals that miss"),
        ("sampled", lambda _, r: {"mean": r["estimate"] + 10.0 * r["noise"]}, "standard errors"),
    ],
)
def test_what_is_wrong_is_noticed(small: tuple[list[Row], Findings], kind: str, change: Change, quantity: str) -> None:
    assert verdict(small[1].evidence, quantity)
    assert not verdict(STUDY.evidence(TINY, changed(small[0], change, kind=kind)), quantity)


def test_chains_without_sampling() -> None:
    """Order 1 is the value of the policy; a right table leaves nothing to correct."""
    model, backup = garnet(states=15, actions=3, discount=0.8, seed=3), LogSumExp(0.3)
    solution = exact.solve(model, backup, 1e-11)
    table = solution.q + np.random.default_rng(0).normal(size=solution.q.shape)
    first, _ = ChainMeans(model, backup, table).orders()
    policy = exact.evaluate(model, backup.policy(table), backup, 1e-10)
    np.testing.assert_allclose(first, policy.values, atol=1e-8)
    for order in ChainMeans(model, backup, solution.q + 5.0).orders():
        np.testing.assert_allclose(order, solution.values, atol=1e-8)
    long = ChainMeans(model, backup, table).orders(horizon=300, tail=7.0)
    np.testing.assert_allclose(long, ChainMeans(model, backup, table).orders(), atol=1e-8)


def test_a_critic_has_its_error_range() -> None:
    errors = critic(0.9, 0.3, 1, 0.5) - critic(0.9, 0.3, 1, 0.0)
    np.testing.assert_allclose(np.ptp(errors, axis=1), 0.5)
    assert np.abs(errors).max() > 0.9


def test_how_many_may_miss() -> None:
    assert most_misses(18, 1e-3) == 2
    assert most_misses(100, 0.1) == 27
    assert most_misses(1, 1e-9) == 0
