"""Which policy to follow after the first step: candidates are learnt from the simulator, and compared by their returns.

A table of the states that were met, a fit or a grid, a constant action and a rule of the user each have their
strengths, which neither the dtype of a state nor the discount tells. So each gets a share of the budget. Returns from
the state of the decision, with the same random numbers for all, choose between them, and the winner gets the rest.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import working_time
from smoothplan.base.records import Arrays, Readable
from smoothplan.base.streams import Role
from smoothplan.chains.fitted import FEW_DIMENSIONS, FittedReference
from smoothplan.chains.grid import GridReference
from smoothplan.chains.least_squares import LeastSquaresReference
from smoothplan.chains.maker import RECURRENCE, spend, suits_grid
from smoothplan.chains.reference import Reference, TooFewCallsError, as_points, values_of
from smoothplan.chains.returns import LEAST_ROWS, LEAST_STEPS, affordable, tournament
from smoothplan.chains.shared import LEAST_SAMPLES, SharedReference
from smoothplan.decide.plans import Plans
from smoothplan.models.model import (
    GenerativeModel,
    Oracle,
    SimulatorError,
    States,
    action_names,
    declares_rewards,
    horizon_of,
    legal_actions,
    random_actions,
)
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel
from smoothplan.theory import curvature
from smoothplan.theory.backups import HardMax

Rule = Callable[[States], ArrayLike]
"""A policy in use: from states [n, ...] to actions [n]."""

LEARNT = (SharedReference, FittedReference, GridReference, LeastSquaresReference)
"""References that are made from simulator calls."""

MOST_FIRST_CALLS = 10_000
"""Calls that improve a table, or a fit by least squares, before it competes with a fit of all actions, at most."""

FEW_VISITS = 1_000
"""Visited states, at each of which all actions are simulated, below which single transitions tell more."""

CUT = 0.02  # the discount at which returns are cut: a reference values the rest


def full_horizon(model: GenerativeModel) -> int:
    """Steps of a return that is cut by the discount or the horizon alone."""
    if model.discount <= CUT:
        return 1
    cut = math.inf if model.discount == 1.0 else math.ceil(math.log(CUT) / math.log(model.discount))
    return int(min(cut, horizon_of(model) or math.inf))


class PolicyReference:
    """Follows a rule, and values states by another reference, if there is one.

    Args:
        rule: from states [n, ...] to actions [n].
        model: the simulator.
        base: values states; 0 without one.
        name: of the rule, in words.
    """

    def __init__(self, rule: Rule, model: GenerativeModel, base: Reference | None = None, name: str = "policy") -> None:
        if not callable(rule):
            raise TypeError(f"policy must be a function from states [n, ...] to actions [n], got {rule!r}")
        self.rule, self._model, self.base, self._name = rule, model, base, name

    def action(self, states: States) -> Ints:
        """The rule's actions, [n], or an error that names the state."""
        found = np.asarray(self.rule(states))
        if found.shape != (len(states),) or found.dtype.kind not in "iub":
            raise ValueError(
                f"policy must return whole-numbered actions of shape ({len(states)},), got {found.dtype} of shape "
                f"{found.shape}"
            )
        model, words = self._model, f"actions in 0..{self._model.actions - 1}"
        wrong = (found < 0) | (found >= model.actions)
        # A constant action gives way to the base's best where it is illegal.
        legal = None if wrong.any() or isinstance(self.rule, _Constant) else legal_actions(model, states)
        if legal is not None:
            wrong, words = ~legal[np.arange(len(found)), found], "legal actions"
        if legal is not None and wrong.any():
            found = np.array(action_names(model))[found]
        if wrong.any():
            raise ValueError(
                f"policy must return {words}, got {found[wrong][0]} at state {np.asarray(states[wrong][0]).tolist()}"
            )
        return np.asarray(found, dtype=np.int64)

    def q(self, states: States) -> Floats:
        """The action values of the base, [n, K], with those of the rule's actions just above the others."""
        q = np.zeros((len(states), self._model.actions))
        if self.base is not None:
            q = values_of(self.base.q, states, self._model).copy()
        top = q.max(axis=1)
        q[np.arange(len(q)), self.action(states)] = top + 1e-12 * (1.0 + np.abs(top))
        return q

    def __repr__(self) -> str:
        return f"PolicyReference({self._name})"


@dataclass
class Budget:
    """The calls or the time for a stretch of work, of which parts end at shares of the whole."""

    calls: int | None
    begun: float  # on the clock of `working_time`
    seconds: float | None

    def upto(self, share: float, made: int) -> dict[str, Any]:
        """The calls that are left until a share of the whole is spent, or the time when it is; see `spend`."""
        if self.calls is not None:
            return {"calls": int(share * self.calls) - made}
        assert self.seconds is not None
        return {"until": self.begun + share * self.seconds}

    def as_calls(self, share: float, made: int) -> int:
        """The same as a number of calls, at the speed so far."""
        if self.calls is not None:
            return int(share * self.calls) - made
        assert self.seconds is not None
        now = working_time()
        return int(made / max(now - self.begun, 1e-9) * (self.begun + share * self.seconds - now))


class Walks:
    """Random walks from a state, which tell whether states are met again."""

    def __init__(self, oracle: Oracle, start: Any) -> None:
        self._oracle, self._start = oracle, np.asarray(start)
        self._states = np.repeat(self._start[None], 16, axis=0)
        self._seen: set[bytes] = set()
        self.rewards = (math.inf, -math.inf)  # the least and the largest seen

    def more(self, calls: int) -> None:
        """Makes at most that many calls."""
        oracle = self._oracle
        for _ in range(calls // len(self._states)):
            found = oracle.sample(self._states, random_actions(oracle.model, self._states, oracle.rng))
            self._seen.update(state.tobytes() for state in found.next_states)
            least, most = self.rewards
            self.rewards = min(least, float(found.rewards.min())), max(most, float(found.rewards.max()))
            self._states = found.next_states.copy()
            self._states[found.terminals] = self._start

    @property
    def recur(self) -> bool:
        """Whether there were enough calls for every state that was found."""
        return self._oracle.calls >= RECURRENCE * max(len(self._seen), 1)


class PolicySearch:
    """Learns a policy to follow, as a reference, from the simulator; or keeps one that is given.

    Args:
        model: the simulator.
        seed: of the simulator calls.
        reference: Q̂; None for one that is made.
        rule: the user's policy, which is followed unless another one is better at the level 1 − δ.
        delta: δ.

    Attributes:
        reference: its best actions are the policy; None until there is one.
        compared: what was compared, and who won by how much, in words; empty if there was nothing to compare.
        table: the reference on a graph of explored states, if states recur.
        plans: sequences of actions, once they were asked for.
        knows: whether that table is accurate at the state where the policy was made, by its own standard errors: then
            there is nothing to compare.
    """

    def __init__(
        self,
        model: GenerativeModel,
        seed: int,
        reference: Reference | None = None,
        rule: Rule | None = None,
        delta: float = 0.1,
    ) -> None:
        self._model, self._delta = model, delta
        self._given, self._rule = reference, rule
        roles: dict[str, tuple[int, Role]] = {
            "table": (0, "reference"),
            "fit": (1, "reference"),
            "singles": (2, "reference"),
            "walk": (0, "walk"),
            "plans": (1, "walk"),
            "contest": (0, "contest"),
        }
        self._oracles = {name: Oracle(model, seed, number, role) for name, (number, role) in roles.items()}
        self.reference: Any = reference
        self.table: SharedReference | None = None
        self.plans: Plans | None = None
        self.compared, self.knows = "", False
        self._made, self._given_calls = reference is not None and rule is None, 0
        self._start: Any = None
        self._rewards: tuple[float, float] | None = None  # taken to be their range, if the model declares none
        self.lasts = False  # whether it serves many decisions
        self.speed = 0.0  # calls a second, of the decision before
        if rule is not None:
            self.reference = PolicyReference(rule, model, reference, "the given policy")

    @property
    def calls(self) -> int:
        """Simulator calls made, exact even if an error or a stop has ended them."""
        return self._given_calls + sum(oracle.calls for oracle in self._oracles.values())

    def plans_of(self, model: GenerativeModel) -> Plans:
        """Plans of the simulator as it was given, which may have a box of actions."""
        if self.plans is None:
            self.plans = Plans(self._oracles["plans"].of_model(model))
        return self.plans

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan from the latest state."""
        return self.plans is not None and self.plans.best is not None

    @property
    def made(self) -> bool:
        """Whether there is nothing left to make: `make` was called, or a reference given and no rule."""
        return self._made

    @property
    def keeps(self) -> bool:
        """Whether the policy's own action is left only for one that is better at the level 1 − δ.

        A reference or a rule of the user is; and one that rests on many more calls than a decision, as an agent's does.
        """
        followed = isinstance(self.reference, PolicyReference) and self.reference.rule is self._rule
        return self._given is not None or self.lasts or followed

    @property
    def _learner(self) -> Any:
        """The reference that learns: the policy's own, or the one that values states for a rule."""
        return self.reference.base if isinstance(self.reference, PolicyReference) else self.reference

    @property
    def learns_at_states(self) -> bool:
        """Whether the reference can be improved at a state of one's choice, by a method improve(calls, state)."""
        improve = getattr(self._learner, "improve", None)
        return callable(improve) and "state" in inspect.signature(improve).parameters

    def improve(self, state: Any, *, calls: int | None = None, until: float | None = None) -> None:
        """Improves the reference at a state; see `spend` for the budget.

        Raises:
            ValueError: the reference made more calls than it was asked for.
        """
        learner = self._learner
        before = learner.calls
        try:
            spend(partial(learner.improve, state=state), lambda: learner.calls, calls=calls, until=until)
        finally:
            made = learner.calls - before
            self._given_calls += made if learner is self._given else 0
        if calls is not None and made > calls:
            raise ValueError(
                f"reference.improve({calls}) must not make more than {calls} simulator calls, but {learner!r} made "
                f"{made}"
            )

    def saved(self) -> Arrays:
        """What was learnt as named arrays, for `restore`.

        Raises:
            ValueError: the reference cannot be saved.
        """
        learner, kinds = self._learner, [kind.__name__ for kind in LEARNT]
        if type(learner).__name__ not in kinds:
            raise ValueError(f"only references that are learnt here can be saved ({', '.join(kinds)}), not {learner!r}")
        follows = -1 if learner is self.reference else -2  # the learner, the given rule, or a constant action
        if follows == -2 and isinstance(self.reference.rule, _Constant):
            follows = self.reference.rule.number
        about = {"kind": np.array([kinds.index(type(learner).__name__), follows]), "root": np.asarray(self._start)}
        if self.plans is not None:
            about |= {f"plans_{name}": array for name, array in self.plans.saved().items()}
        found: Arrays = about | learner.saved()
        return found

    def restore(self, arrays: Readable, given: GenerativeModel) -> None:
        """Takes on what another search has learnt for the same model, without any simulator call.

        Args:
            arrays: from `saved`.
            given: the simulator as it was given, which may have a box of actions.

        Raises:
            ValueError: the arrays are not those of such a search, or the rule is missing that it followed.
        """
        (kind, follows), self._start = arrays["kind"].tolist(), arrays["root"]
        if LEARNT[kind] is GridReference:
            assert isinstance(self._model, JitModel)
            centred = replace(self._model, initial_state=self._start)
            learner: Any = GridReference.build(centred, HardMax(), oracle=self._oracles["fit"], saved=arrays)
        else:
            made: Any = LEARNT[kind]
            if made is LeastSquaresReference:
                learner = made(self._model, root=self._start, oracle=self._oracles["singles"])
            elif made is SharedReference:
                self._rewards = tuple(arrays["assumed"].tolist()) if "assumed" in arrays else None
                learner = self._new_table(self._start)
            else:
                learner = made(self._model, HardMax(), root=self._start, oracle=self._oracles["fit"])
            learner.restore(arrays)
        self.reference, self._made = learner, True
        if "plans_random" in arrays:
            own = (name for name in arrays if name.startswith("plans_"))
            self.plans_of(given).restore({name.removeprefix("plans_"): arrays[name] for name in own})
        if follows >= 0:
            name = f"always {action_names(self._model)[follows]}"
            self.reference = PolicyReference(_Constant(follows), self._model, learner, name)
        elif follows == -2:
            if self._rule is None:
                raise ValueError("policy must be given again: the saved agent followed it, and no code was saved")
            self.reference = PolicyReference(self._rule, self._model, learner, "the given policy")

    def rule_action(self, state: Any) -> int | None:
        """The action of the given rule at a state; None without a rule."""
        if self._rule is None:
            return None
        rule = PolicyReference(self._rule, self._model)
        return int(rule.action(np.asarray(state)[None])[0])

    def make(self, state: Any, budget: Budget, prove: Callable[["PolicySearch", Budget], bool] | None = None) -> None:
        """Makes candidates within a budget, and takes the best one.

        Args:
            state: where the policy starts.
            budget: for everything here.
            prove: searches on `table` for a proof, by a part of the budget; whether it has found one.
        """
        model, self._start = self._model, np.asarray(state)
        state = self._start
        if self.made:
            return
        self._made = True
        labels = isinstance(model, TabularModel) or state.dtype.kind not in "iuf"
        learnt: dict[str, Any] = {} if self._given is None else {"the given reference": self._given}
        after = 0.0
        if self._given is None:
            recurs = labels
            if not labels or not declares_rewards(model):
                recurs |= self._recurs(state, budget)
            small = not labels and as_points(state[None], state, model).shape[1] <= FEW_DIMENSIONS
            few = small and budget.calls is not None and budget.calls < FEW_VISITS * model.actions
            learners = recurs + small + (not labels and not few)
            rivals = learners + (self._rule is not None)
            rivals += model.actions if rivals == 1 else 0  # constant actions
            # The part in which they compete; with several learners, the winner learns by the rest.
            share = 0.1 if learners > 1 else 0.15
            if budget.calls is not None and affordable(int(share * budget.calls), LEAST_STEPS) < rivals:
                share = 0.0
            after = 0.15 if learners > 1 and share > 0.0 else 0.0
            learnt_by = 1.0 - share - after
            if recurs:
                self.table = self._new_table(state)
                self.reference = self.reference or self.table
                learnt["a table of the states met"] = self.table
                if prove is not None and prove(self, budget):
                    self.reference = self.table
                    return
                spend(self.table.improve, lambda: self.calls, **self._first(budget, learnt_by if labels else 0.4))
                if budget.calls is not None and horizon_of(model) is not None and not self.table.claims(state):
                    # Every state has its time, so that few are met in an episode; a table learns them one by one.
                    needed = LEAST_SAMPLES * self.table.states * model.actions
                    if needed <= budget.calls:
                        spend(self.table.improve, lambda: self.calls, **budget.upto(0.7, self.calls))
                if self._rule is None and self.table.claims(state) is not None:
                    self.reference, self.knows = self.table, True
                    self.compared = f"a table of {self.table.states:,} states is accurate here"
                    spend(self.table.improve, lambda: self.calls, **budget.upto(1.0, self.calls))
                    return
            if small:
                singles = LeastSquaresReference(model, root=state, oracle=self._oracles["singles"])
                learnt["a least-squares fit"] = singles
                self.reference = self.reference or singles
                spend(
                    singles.improve,
                    lambda: self.calls,
                    **self._first(budget, learnt_by if few else 0.4 + 0.2 * recurs, few),
                )
            if not labels and not few:
                spend(
                    lambda calls: self._learn(learnt, state, calls),
                    lambda: self.calls,
                    **budget.upto(learnt_by, self.calls),
                    first=1 << 14 if isinstance(model, JitModel) else 16,
                )
        self._contest(state, learnt, budget.as_calls(1.0 - after, self.calls))
        if isinstance(self._learner, LEARNT) and self._given is None:
            spend(self._learner.improve, lambda: self.calls, **budget.upto(1.0, self.calls))

    def _first(self, budget: Budget, share: float, alone: bool = False) -> dict[str, Any]:
        """What one of several candidates may spend before they compete; see `spend`."""
        left = budget.upto(share, self.calls)
        if "calls" in left and not alone and not isinstance(self._model, TabularModel):
            left["calls"] = min(left["calls"], MOST_FIRST_CALLS)
        return left

    def _recurs(self, state: States, budget: Budget) -> bool:
        """Whether random walks meet the same states again, by a twentieth of the budget."""
        walks = Walks(self._oracles["walk"], state)
        spend(walks.more, lambda: self.calls, **budget.upto(0.05, self.calls))
        if not declares_rewards(self._model):
            low, high = walks.rewards if walks.rewards[0] <= walks.rewards[1] else (0.0, 1.0)
            room = (high - low) or max(abs(low), 1.0)
            self._rewards = low - room, high + room
        return walks.recur

    def _new_table(self, state: States) -> SharedReference:
        """A table without any samples. It needs a range of rewards, if only to decide where to sample."""
        made: dict[str, Any] = {"root": state, "delta": self._delta, "oracle": self._oracles["table"]}
        return SharedReference(self._model, HardMax(), **made, assumed=self._rewards)

    def _learn(self, learnt: dict[str, Any], state: States, calls: int) -> None:
        """Makes a fit or, of a compiled simulator of few numbers, a grid; or improves it."""
        names = [name for name in ("a fit", "a grid") if name in learnt]
        if names:
            learnt[names[0]].improve(calls)
            return
        model, doubt = self._model, ""
        if suits_grid(model, state):
            try:
                centred = replace(cast(JitModel, model), initial_state=state)
                learnt["a grid"] = GridReference.build(centred, HardMax(), max_calls=calls, oracle=self._oracles["fit"])
                self.reference = self.reference or learnt["a grid"]
                return
            except (TooFewCallsError, SimulatorError) as error:  # the simulator may not know all states of a box
                calls, doubt = max(1, calls - self._oracles["fit"].calls), f"no grid could be made: {error}"
        fitted = FittedReference(model, HardMax(), root=state, oracle=self._oracles["fit"])
        fitted.why = doubt
        learnt["a fit"] = fitted
        self.reference = self.reference or fitted
        fitted.improve(calls)

    def _contest(self, state: States, learnt: dict[str, Any], calls: int) -> None:
        """Takes whichever candidate earns most from the state."""
        model, names = self._model, action_names(self._model)
        low, high = curvature.value_interval(model, HardMax())
        known = [reference for reference in learnt.values() if not getattr(reference, "is_blank", False)]
        base = known[0] if known else None

        def value(states: States) -> Floats:
            if not known:
                return np.zeros(len(states))
            found = np.mean([values_of(one.q, states, model).max(axis=1) for one in known], axis=0)
            return np.asarray(np.clip(found, low, high))

        candidates: dict[str, Any] = dict(learnt)
        if self._rule is not None:
            candidates = {"the given policy": PolicyReference(self._rule, model, base, "the given policy")}
            candidates |= learnt
            self.reference = candidates["the given policy"]
        legal = legal_actions(model, state[None])
        constants = {
            f"always {name}": PolicyReference(_Constant(action), model, base, f"always {name}")
            for action, name in enumerate(names)
            if legal is None or legal[0, action]
        }
        blind = not known and self._rule is None  # nothing is known of the values where returns are cut
        for found in (candidates | constants, candidates):  # constants if calls can compare them
            outcome = tournament(
                self._oracles["contest"],
                lambda rows: np.repeat(state[None], rows, axis=0),
                [_Best(reference, model) for reference in found.values()],
                value,
                full_horizon(model),
                calls,
                learnt=[name in learnt for name in found],
                least_rows=1 if blind else LEAST_ROWS,
                favourite=None if self._rule is None else 0,
                level=1.0 - self._delta,
            )
            if outcome is not None:
                titles = list(found)
                won, second = titles[outcome.winner], titles[outcome.second]
                self.reference = found[won]
                others = f" of {len(titles)} policies" if len(titles) > 2 else ""
                lead = f"{outcome.lead:.3g} ± {outcome.error:.2g} more than" if outcome.lead > 0.0 else "as much as"
                self.compared = f"{won} earned most{others}, {lead} {second}"
                if outcome.lead < 0.0:
                    self.compared = f"nothing better than {won} was found"
                return
        if len(candidates) > 1:
            self.compared = f"too few calls to compare {len(candidates)} policies"
        if self._rule is None and candidates:
            self.reference = list(candidates.values())[-1]
            if self.table is not None and 2 * self.table.calls > self.calls:  # of a search for a proof
                self.reference = self.table


@dataclass(frozen=True)
class _Constant:
    """The same action everywhere."""

    number: int

    def __call__(self, states: States) -> Ints:
        return np.full(len(states), self.number)


@dataclass(frozen=True, eq=False)
class _Best:
    """The best actions of a reference."""

    reference: Any
    model: GenerativeModel

    def __call__(self, states: States) -> Ints:
        return np.asarray(values_of(self.reference.q, states, self.model).argmax(axis=1))
