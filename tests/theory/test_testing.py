"""`check_backup`: every false declaration is found and named, and nothing is found in a correct backup."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

import smoothplan as sp
from smoothplan.base.arguments import Floats
from smoothplan.theory.backups import Backup, line_cost
from tests.own_backups import Called, TwoTemperatures

TABLE = np.random.default_rng(3).dirichlet(np.ones(3), size=4)

GOOD: list[Backup] = [
    sp.HardMax(),
    sp.LogSumExp(0.05),
    sp.LogSumExp(40.0),
    sp.Tsallis(0.2),
    sp.Tsallis(3.0),
    sp.OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.3),
    TwoTemperatures(),
]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
@pytest.mark.parametrize("backup", GOOD)
def test_correct_backups_pass_and_their_bounds_are_nearly_seen(backup: Backup, seed: int) -> None:
    report = sp.check_backup(backup, 3, seed=seed)
    assert report.points == 400
    assert report.at_zero == pytest.approx(backup.at_zero_range(3))
    declared = backup.derivatives(3)
    assert len(report.derivatives) == len(declared)
    assert all(0.0 < seen <= bound * (1 + 1e-6) for seen, bound in zip(report.derivatives, declared, strict=True))
    if isinstance(backup, sp.LogSumExp | sp.Tsallis):
        # The third derivative is largest in three different directions, 1/8; the check takes one, where it is √3/18.
        nearly = [0.75 if order == 3 else 0.98 for order in range(2, 2 + len(declared))]
        found = zip(report.derivatives, declared, nearly, strict=True)
        assert all(seen >= part * bound for seen, bound, part in found)


@pytest.mark.parametrize("actions", [1, 2, 7])
def test_any_number_of_actions(actions: int) -> None:
    for backup in (sp.HardMax(), sp.LogSumExp(0.5), sp.Tsallis(0.5)):
        sp.check_backup(backup, actions)


def test_backups_that_depend_on_the_state() -> None:
    backup = sp.OptimalTransport(cost=line_cost(3), tau=1.0, lam=0.3, prior=TABLE)
    found = sp.check_backup(backup, 3, np.arange(4))
    assert found.at_zero == pytest.approx(backup.at_zero_range(3))
    with pytest.raises(ValueError, match="pass states="):
        sp.check_backup(backup, 3)
    with pytest.raises(ValueError, match=r"states must be a batch .* got shape \(0,\)"):
        sp.check_backup(backup, 3, [])


@dataclass(frozen=True)
class Wrong:
    """A correct backup with something exchanged."""

    inner: Backup
    changed: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.changed.get(name, getattr(self.inner, name))


SOFT, SPARSE = sp.LogSumExp(0.5), sp.Tsallis(0.5)
GRADIENT = "policy is not the gradient of a convex value: value is "


def with_bound(backup: Backup, order: int, factor: float) -> dict[str, Callable[[int], tuple[float, ...]]]:
    """The bounds that a backup declares of its derivatives, one of them multiplied by a factor."""
    declared = backup.derivatives(3)
    return {"derivatives": lambda _: tuple(b * (factor if k == order else 1.0) for k, b in enumerate(declared, 2))}


@pytest.mark.parametrize(
    ("backup", "changed", "complaint"),
    [
        (SOFT, {"policy": lambda q, _: sp.LogSumExp(0.45).policy(q)}, GRADIENT),  # wrong by a few per cent
        (SOFT, {"policy": lambda q, _: 0.99 * SOFT.policy(q)}, "policy is no distribution, "),
        (SOFT, {"policy": lambda q, _: SOFT.policy(q)[:, :1]}, r"policy of \[400, 3\] must have shape"),
        (SOFT, {"at_zero_range": lambda _: (0.0, 0.5)}, r"value is 0\.549.*, outside of at_zero_range, \(0.0, 0"),
        (SOFT, {"at_zero_range": lambda _: (math.nan, 1.0)}, "outside of at_zero_range"),
        (SOFT, {"regulariser": lambda p, _: 0.9 * SOFT.regulariser(p)}, r"regulariser\(π\) is .* policy\(q\)"),
        (SPARSE, {"regulariser": lambda p, _: SPARSE.regulariser(p) - 0.01 * (p == 1).any(-1)}, "at π = "),
        (SPARSE, {"value": lambda q, _: SPARSE.value(q) * 1.001}, "not translation-equivariant"),
        (SPARSE, {"value": lambda q, _: np.full(len(q), math.nan)}, "value is nan"),
        (SPARSE, {"value": lambda q, _: [None] * len(q)}, "value must be an array of numbers"),
        (sp.HardMax(), {"value": lambda q, _: 2 * q[:, 0] - q[:, 1]}, GRADIENT),  # not monotone
        (
            sp.HardMax(),  # not convex, with its gradient
            {"value": lambda q, _: np.median(q, axis=1), "policy": lambda q, _: np.eye(3)[q.argsort(axis=1)[:, 1]]},
            GRADIENT,
        ),
        (SPARSE, with_bound(SPARSE, 2, 0.99), r"declares 1\.3[12]\d* for the derivative of order 2, but .* 1\.33"),
        (SOFT, with_bound(SOFT, 2, 0.99), r"declares 0\.495 for the derivative of order 2"),
        (SOFT, with_bound(SOFT, 3, 0.75), "for the derivative of order 3, but around there it is 0.38"),
        (SOFT, with_bound(SOFT, 4, 0.98), "for the derivative of order 4"),
        (SOFT, with_bound(SOFT, 6, 0.9), "for the derivative of order 6"),
        (SPARSE, {"derivatives": lambda _: (4 / 3 / 0.5, 100.0)}, "for the derivative of order 3"),
        (sp.HardMax(), {"derivatives": lambda _: (1e3,)}, r"temperature is 0\.0 and derivatives\(3\) is \(1000"),
        (sp.HardMax(), {"derivatives": lambda _: (1e3,), "temperature": 0.1}, "for the derivative of order 2"),
        (SOFT, {"derivatives": lambda _: (math.inf,)}, "finite bounds"),
    ],
)
def test_every_false_declaration_is_named(backup: Backup, changed: dict[str, Any], complaint: str) -> None:
    wrong = Wrong(backup, changed)
    with pytest.raises(sp.BackupError, match=complaint) as caught:
        sp.check_backup(wrong, 3)
    assert str(caught.value).startswith("Wrong(")
    for seed in (1, 2):
        with pytest.raises(sp.BackupError):
            sp.check_backup(wrong, 3, seed=seed)


def test_the_supremum_of_the_regulariser_over_states() -> None:
    """Without states a regulariser must not be below that of any state: bounds rely on it."""
    charges = np.array([0.0, 0.5])

    def value(q: ArrayLike, states: Any = None) -> Floats:
        return np.asarray(SOFT.value(q) - charges[states])

    def regulariser(policy: ArrayLike, states: Any = None) -> Floats:
        return np.asarray(SOFT.regulariser(policy) + (charges[states] if states is not None else largest))

    at_zero = SOFT.at_zero_range(3)[0]
    changed = {"value": value, "regulariser": regulariser, "at_zero_range": lambda actions: (at_zero - 0.5, at_zero)}
    largest = 0.5
    sp.check_backup(Wrong(SOFT, changed), 3, [0, 1])
    largest = 0.4
    with pytest.raises(sp.BackupError, match=r"is 0\.5, and without states less, 0\.4, at q = .* and state 1"):
        sp.check_backup(Wrong(SOFT, changed), 3, [0, 1])


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="actions must be at least 1, got 0"):
        sp.check_backup(SOFT, 0)
    with pytest.raises(ValueError, match="points must be at least 1, got 0"):
        sp.check_backup(SOFT, 2, points=0)


def test_a_seed_decides_what_is_tried() -> None:
    calls = [Called(SOFT), Called(SOFT)]
    first, second = (sp.check_backup(backup, 3, seed=5) for backup in calls)
    assert first == second != sp.check_backup(SOFT, 3, seed=6)
    assert calls[0].calls == calls[1].calls
    assert sp.check_backup(replace(calls[0], calls=[0]), 3, points=50).points == 50
