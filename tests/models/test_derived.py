"""Episodes that are cut off, legal and named actions, boxes of actions: against plain recursions."""

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.base.arguments import Floats, Ints
from smoothplan.models import chain, discretise, finite_horizon, garnet, mountain_car
from smoothplan.models.derived import split_stages, with_steps_left
from smoothplan.models.model import checked_step, total_weight
from smoothplan.theory import curvature, exact
from smoothplan.theory.backups import Backup

BACKUPS: list[Backup] = [
    sp.HardMax(),
    sp.LogSumExp(0.5),
    sp.Tsallis(0.7),
    sp.OptimalTransport(cost=1.0 - np.eye(3), tau=0.4, lam=0.8, prior=[0.5, 0.2, 0.3]),
]


def masked_garnet(discount: float = 0.9) -> sp.TabularModel:
    """A table with three actions of which some states lack one."""
    model = garnet(states=7, actions=3, branching=2, discount=discount, seed=3)
    legal = np.random.default_rng(5).random((7, 3)) < 0.6
    legal[np.arange(7), np.arange(7) % 3] = True
    parts = model.probabilities, model.successors, model.rewards
    return sp.TabularModel(*parts, discount=discount, legal=legal, reward_kind="bernoulli", reward_range=(0, 1))


def with_an_illegal_action(model: sp.TabularModel) -> sp.TabularModel:
    """The same with one more action, which is legal nowhere."""
    extra = (model.probabilities, 0.0), (model.successors, 1), (model.rewards, 0.25)
    parts = [np.concatenate([part, part[:, :1] * 0 + value], axis=1) for part, value in extra]
    legal = np.tile(np.arange(model.actions + 1) < model.actions, (model.states, 1))
    declared: Any = {"reward_kind": model.reward_kind, "reward_range": model.reward_range}
    return sp.TabularModel(*parts, discount=model.discount, legal=legal, **declared)


def without_the_illegal(backup: Backup, allowed: Ints) -> Backup:
    """The backup of a model that has the allowed actions only."""
    if not isinstance(backup, sp.OptimalTransport):
        return backup
    prior = backup.weights(None)[allowed]
    cost = backup.cost[np.ix_(allowed, allowed)]
    return sp.OptimalTransport(cost=cost, tau=backup.tau, lam=backup.lam, prior=prior / prior.sum())


def updated(model: sp.TabularModel, backup: Backup, discount: float, values: Floats) -> Floats:
    """One backup of every state of a table without terminal states, over its legal actions alone."""
    assert model.legal is not None
    result = np.zeros(model.states)
    for state in range(model.states):
        allowed = np.flatnonzero(model.legal[state])
        ahead = (model.probabilities[state, allowed] * values[model.successors[state, allowed]]).sum(axis=1)
        q = model.expected_rewards[state, allowed] + discount * ahead
        result[state] = without_the_illegal(backup, allowed).value(q)
    return result


@pytest.mark.parametrize("backup", BACKUPS, ids=lambda backup: type(backup).__name__)
@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_a_season_is_worth_what_the_recursion_says(backup: Backup, discount: float) -> None:
    model, steps = masked_garnet(), 4
    season: Any = pickle.loads(pickle.dumps(finite_horizon(model, steps, discount=discount)))
    assert (season.horizon, season.states, season.stationary.states) == (steps, 7 * (steps + 1), 7)
    solved, values = exact.solve(season, backup), np.zeros(7)
    for left in range(steps + 1):
        states = np.arange(7) + 7 * (steps - left)
        np.testing.assert_allclose(solved.values[states], values, atol=1e-12)
        inner, found = split_stages(season, states)
        assert (inner.tolist(), set(found.tolist()), set(season.depths[states])) == ([*range(7)], {left}, {left})
        low, high = curvature.value_interval(season, backup, left)
        assert low - 1e-9 <= values.min() <= values.max() <= high + 1e-9
        values = updated(model, backup, discount, values)
    assert (solved.q[:28] == -np.inf).tolist() == np.tile(~np.asarray(model.legal), (4, 1)).tolist()
    np.testing.assert_allclose(exact.evaluate(season, solved.policy, backup).values, solved.values, atol=1e-9)


@pytest.mark.parametrize("backup", BACKUPS, ids=lambda backup: type(backup).__name__)
def test_illegal_actions_have_no_part_in_values(backup: Backup) -> None:
    model = masked_garnet()
    solved = exact.solve(model, backup, tolerance=1e-10)
    np.testing.assert_allclose(updated(model, backup, 0.9, solved.values), solved.values, atol=1e-9)
    assert not solved.policy[~np.asarray(model.legal)].any()
    low, high = curvature.value_interval(model, backup)
    assert low <= solved.values.min() <= solved.values.max() <= high
    policy = np.full((7, 3), 1 / 3)
    with pytest.raises(
        ValueError, match=r"policy must be 0 for illegal actions, got 0\.333\d* for action \d at state \d"
    ):
        exact.evaluate(model, policy, backup)


def test_rows_of_illegal_pairs_have_no_say() -> None:
    model, changed = masked_garnet(), masked_garnet()
    illegal = ~np.asarray(model.legal)
    rewards = changed.rewards.copy()
    rewards[illegal] = 1e9
    targets = np.where(illegal[..., None], 10**6, changed.successors)
    parts = changed.probabilities, targets, rewards
    again = sp.TabularModel(*parts, discount=0.9, legal=~illegal, reward_kind="bernoulli", reward_range=(0, 1))
    for name in ("probabilities", "successors", "rewards"):
        assert (getattr(again, name) == getattr(model, name)).all()
    state, action = np.argwhere(illegal)[0]
    with pytest.raises(ValueError, match=re.escape(f"actions must be legal, got {action} at state {state}")):
        sp.Oracle(model, seed=0).sample(np.array([state]), np.array([action]))


def walk(states: Floats, actions: Ints, rng: np.random.Generator) -> Any:
    """A walk on the line, with noise; what is to the right pays."""
    following = states + (2 * actions - 1)[:, None] + rng.integers(0, 2, size=states.shape)
    return following, following[:, 0] * 0.125


@pytest.mark.parametrize("kind", ["vector", "numbers", "jit"])
def test_simulators_with_the_steps_left(kind: str) -> None:
    declared: dict[str, Any] = {"actions": ["down", "up"], "discount": 0.9, "reward_range": (-2, 2)}
    model: sp.GenerativeModel = sp.VectorModel(walk, **declared, initial_state=np.zeros(1), terminates=False)
    if kind == "jit":
        model = mountain_car()
    if kind == "numbers":
        model = sp.VectorModel(lambda s, a, rng: (s + a, s * 0.125), **declared, initial_state=3)
    season: Any = pickle.loads(pickle.dumps(finite_horizon(model, 3, discount=1.0))) if kind != "numbers" else None
    season = season or finite_horizon(model, 3, discount=1.0)
    assert (season.horizon, season.discount, season.terminates) == (3, 1.0, True)
    states, plain = season.initial_state[None], np.asarray(model.initial_state)[None]
    for left in (2, 1, 0):
        found = sp.Oracle(season, seed=left).sample(states, np.array([1]))
        expected = sp.Oracle(model, seed=left).sample(plain, np.array([1]))
        assert found.next_states[0, -1] == left
        assert found.terminals.tolist() == [left == 0]
        assert split_stages(season, found.next_states)[0].tolist() == expected.next_states.tolist()
        assert found.rewards.tolist() == expected.rewards.tolist()
        states, plain = found.next_states, expected.next_states


def test_the_depth_of_a_state_is_its_longest_episode() -> None:
    """0 → 1 → 2 (the end), and 0 → 2 at once."""

    def table(discount: float, horizon: int | None, first: int = 1, second: int = 2) -> sp.TabularModel:
        targets = [[[first], [2]], [[second], [2]], [[2], [2]]]
        ends = [False, False, True]
        return sp.TabularModel(
            np.ones((3, 2, 1)), targets, np.ones((3, 2)), discount=discount, horizon=horizon, terminal=ends
        )

    model = table(1.0, 2)
    assert model.depths.tolist() == [2, 1, 0]
    assert exact.solve(model, sp.HardMax()).values.tolist() == [2.0, 1.0, 0.0]
    assert table(0.5, None).depths.tolist() == [2, 1, 0]
    with pytest.raises(sp.ModelError, match=r"horizon=1 is exceeded: an episode has not ended after 1 steps, at state"):
        table(1.0, 1)
    with pytest.raises(sp.ModelError, match=r"horizon=9 is exceeded: an episode may go on for ever at state 0"):
        table(1.0, 9, second=0)


def test_sums_of_discounts() -> None:
    for discount in (0.0, 0.3, 0.999999, 1.0):
        for steps in (0, 1, 7):
            assert total_weight(discount, steps) == pytest.approx(sum(discount**t for t in range(steps)), rel=1e-12)
    assert total_weight(0.75, None) == total_weight(0.75, np.inf) == 4.0


@pytest.mark.parametrize(("discounts", "kept"), [([0.9, 0.9], 1.0), ([0.0, 0.0], 0.0), ([0.45, 0.45], 0.5)])
def test_a_discount_of_a_step_is_a_chance_to_go_on(discounts: list[float], kept: float) -> None:
    """20,000 draws: a deviation of 0.016 is 4.5 standard errors, a false alarm of 1e-5."""
    count = 20_000

    def step(states: Floats, actions: Ints, rng: np.random.Generator) -> Any:
        no = np.zeros(len(states), dtype=bool)
        return states, np.ones(len(states)), no, np.where(actions == 0, discounts[0], discounts[1])

    model = sp.VectorModel(step, actions=2, discount=0.9, reward_range=(0, 1))
    found = sp.Oracle(model, seed=1).sample(np.zeros((count, 1)), np.arange(count) % 2)
    assert (~found.terminals).mean() == pytest.approx(kept, abs=0.016 if 0 < kept < 1 else 0)


def test_a_season_of_rewards_that_tell_whether_the_episode_ends() -> None:
    """At the last stage they depend on more than the next state."""
    outcomes = [[[(0.5, 0, 1.0, False), (0.5, 0, 0.0, True)]]]
    model = sp.TabularModel.from_outcomes(outcomes, discount=0.9, reward_kind="transition")
    season: Any = finite_horizon(model, 3, discount=1.0)
    assert (model.reward_kind, season.reward_kind) == ("transition", "bounded")
    assert exact.solve(season, sp.HardMax()).values[0] == pytest.approx(0.5 * 1.75)


@dataclass
class Endless:
    """A simulator of one's own."""

    horizon: int | None = None
    terminates: bool = True
    actions = 2
    discount = 1.0
    reward_range = (0.0, 1.0)
    reward_kind = "bounded"
    max_successors = None
    initial_state = 0

    def step(self, states: Any, actions: Any, rng: np.random.Generator) -> Any:
        return states + 1, np.ones(len(states)), states >= 2


def test_a_class_of_ones_own_declares_a_horizon_too() -> None:
    model: Any = Endless(3)
    assert sp.plan(sp.MDPGapE(epsilon=0.1), model).value == pytest.approx(3.0, abs=0.1)


def test_simulators_of_one_state_and_compiled_ones_have_discounts_too() -> None:
    """The same bits as a vectorised simulator's, by the oracle and, with a reference on a grid, in compiled chains."""

    def step(states: Floats, actions: Ints, rng: np.random.Generator) -> Any:
        return 1.0 - states, np.ones(len(states)), np.zeros(len(states), dtype=np.bool_), 0.9 - 0.3 * actions

    def one(state: Floats, action: int, rng: np.random.Generator) -> Any:
        return 1.0 - state, 1.0, False, 0.9 - 0.3 * action

    declared: Any = {"actions": 2, "discount": 0.9, "reward_range": (0, 1), "initial_state": [0.5]}
    compiled = sp.JitModel(step, **declared)
    given = sp.VectorModel(step, **declared), compiled, sp.VectorModel.from_scalar(one, **declared)
    found = [sp.Oracle(each, seed=1).sample(np.full((1, 1), 0.5), np.ones(1, dtype=int)) for each in given * 2]
    assert [each.next_states for each in found] == [found[0].next_states] * 6
    assert len({bool(each.terminals[0]) for each in found}) == 1
    season: Any = finite_horizon(compiled, 3, discount=1.0)
    assert sp.Oracle(season, seed=1).sample(np.full((999, 2), 3.0), np.full(999, 1)).terminals.mean() > 0.2
    numbers, rngs = np.full((999, 1), 0.5), [np.random.default_rng(3) for _ in range(2)]
    ended = compiled.ending_step(numbers, np.full(999, 1), rngs[0])
    again = checked_step(compiled, numbers, np.full(999, 1), rngs[1])
    assert 0.2 < again.terminals.mean() < 0.5
    assert all(np.array_equal(one, other) for one, other in zip(ended, again, strict=True))
    with pytest.raises(sp.ModelError, match=r"discount 0.9 is not between 0 and the declared 0.5 \(state"):
        sp.check_model(sp.JitModel(compiled.step, **declared | {"discount": 0.5}))
    mixed = sp.VectorModel.from_scalar(lambda s, a, rng: one(s, a, rng)[: 4 - a], **declared)
    with pytest.raises(sp.ModelError, match=r"discount nan is not between 0 and the declared"):
        sp.check_model(mixed)


def test_actions_out_of_a_box() -> None:
    declared: dict[str, Any] = {"discount": 0.9, "reward_range": (-9, 9)}
    heating = sp.VectorModel(lambda s, a, rng: (s + a, -np.abs(a)), actions=sp.Box(-2.0, 2.0), **declared)
    model, cost = discretise(heating, 3)
    assert (model.actions, getattr(model, "action_names", None)) == (3, ("-2", "0", "2"))
    assert cost.tolist() == [[0.0, 0.5, 1.0], [0.5, 0.0, 0.5], [1.0, 0.5, 0.0]]
    found = sp.Oracle(model, seed=0).sample(np.zeros(3), np.arange(3))
    assert (found.next_states.tolist(), found.rewards.tolist()) == ([-2.0, 0.0, 2.0], [-2.0, 0.0, -2.0])
    plane = sp.VectorModel(lambda s, a, rng: (s + a.sum(axis=1), s), actions=sp.Box([0, 0], [1, 4]), **declared)
    model, cost = discretise(plane, 2)
    assert getattr(model, "action_names", None) == ("0, 0", "0, 4", "1, 0", "1, 4")
    np.testing.assert_allclose(cost[0] ** 2, [0.0, 0.5, 0.5, 1.0])  # each side counts the same
    assert discretise(plane, [[0.5, 1.0], [0.5, 3.0]])[0].actions == 2
    assert sp.OptimalTransport(cost=cost, tau=0.1, lam=1.0).value(np.zeros(4)) <= 0.1 * np.log(4)
    with pytest.raises(ValueError, match="model must have finitely many actions here, got Box"):
        sp.forecast(sp.DebiasedCruiser(sp.LogSumExp(1.0), epsilon=0.1, delta=0.1), heating)


STEP: Any = lambda states, actions, rng: (states, actions * 0.0)  # noqa: E731
DECLARED: dict[str, Any] = {"actions": 2, "discount": 0.9, "reward_range": (0, 1)}


def declared(**changes: Any) -> Callable[[], Any]:
    return lambda: sp.VectorModel(STEP, **{**DECLARED, **changes})


def sampled(**changes: Any) -> Callable[[], Any]:
    return lambda: sp.Oracle(declared(**changes)(), seed=0).sample(np.array([[7.0]]), np.array([0]))


def transported(actions: int) -> Any:
    """A plan with a prior for the first action, which is illegal."""
    model = declared(actions=["a", "b"], legal=lambda states: np.tile([False, True], (len(states), 1)))()
    prior, cost = np.eye(actions)[0], 1.0 - np.eye(actions)
    backup = sp.OptimalTransport(cost=cost, tau=1.0, lam=1.0, prior=prior)
    return sp.plan(sp.OTGapE(backup, 0.1), model, [0.0], max_calls=10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (declared(discount=1.0), "discount must be below 1 unless episodes end after a known number of steps, got 1.0"),
        (declared(horizon=0), "horizon must be at least 1, got 0"),
        (lambda: sp.plan(sp.UCT(), cast(Any, Endless()), max_calls=9), "discount must be below 1 unless episodes end"),
        (lambda: sp.plan(sp.UCT(), cast(Any, Endless(3, False)), max_calls=9), "terminates must be True with"),
        (declared(horizon=3, terminates=False), "terminates must be True with horizon=3: episodes end by then, got F"),
        (declared(actions=["a", "a"]), "the names of actions must differ, and be printable, got ('a', 'a')"),
        (declared(actions=np.array(["a", " "])), "the names of actions must differ, and be printable, got"),
        (declared(actions=["a", "b\nc"]), "the names of actions must differ, and be printable, got ('a', 'b\\nc')"),
        (declared(actions=["a", None]), "the names of actions must differ, and be printable, got ('a', 'N"),
        (declared(action_names="ab"), "action_names must be a list of names, got 'ab'"),
        (declared(action_names=["a"]), "action_names must have 2 entries, got 1"),
        (lambda: sp.Box(0.0, np.inf), "high must be finite, so that actions can be compared, got inf"),
        (lambda: sp.Box([0, 1], [1, 1]), "low must be below high, got [0.0, 1.0] and [1.0, 1.0]"),
        (lambda: sp.Box(0, 1).grid(1), "points must be at least 2, got 1"),
        (sampled(legal=lambda states: np.ones(2, bool)), "legal must return booleans of shape (1, 2) for 1 states"),
        (sampled(legal=lambda states: states > 9 + np.zeros((1, 2))), "legal leaves no action at state [7.0]"),
        (sampled(legal=lambda states: states / None), "legal raised TypeError: unsupported operand type(s) for /: "),
        (sampled(actions=["a", "b"], reward_range=(1, 2)), "reward 0.0 is outside the declared range [1, 2] (state [7"),
        (sampled(actions=["a", "b"], reward_range=(1, 2)), "action a, reward 0.0, next state [7.0]"),
        (sampled(legal=lambda states: np.array([[False, True]])), "actions must be legal, got 0 at state [7.0]"),
        (lambda: transported(3), "actions is 2 but this backup's cost matrix has 3 actions"),
        (lambda: transported(2), "prior gives no weight to any of the legal actions ['b'] at state [0.0]"),
        (lambda: discretise(declared()(), 3), "model must have actions in a Box to choose from, got 2 actions"),
        (lambda: discretise(declared(actions=sp.Box(0, 1))(), [0.5, 2.0]), "points must be in Box(0.0, 1.0), got 2.0"),
        (lambda: finite_horizon(finite_horizon(chain(), 3), 3), "model must not have been cut off before, got"),
        (lambda: with_steps_left(np.zeros((1, 1), np.float16), 3_000), "steps must be at most 2,048 for states of"),
        (lambda: with_steps_left(np.zeros((1, 2, 2)), 1), "states must be numbers or vectors of numbers to be cut off"),
        (
            lambda: sp.TabularModel([[[1.0]]], [[[0]]], [[1.0]], discount=0.5, legal=[True]),
            "legal must be booleans of shape (1, 1), got shape (1,) of dtype bool",
        ),
        (
            lambda: sp.TabularModel([[[1.0]]], [[[0]]], [[1.0]], discount=0.5, legal=[[False]]),
            "legal leaves no action at state 0, which is not terminal",
        ),
        (
            lambda: sp.forecast(
                sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1, delta=0.1), declared(reward_range=None)()
            ),
            "reward_range must be declared for this planner, got (-inf, inf)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        call()
