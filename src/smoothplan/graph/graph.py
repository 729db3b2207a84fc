"""Discovered states, pairs, successors and their intervals, as arrays that compiled code reads and fills.

A state is known by the number under which it was discovered; the root is number 0. With a finite horizon every state
has an interval for each stage, and with stage-wise counts also statistics for each stage. So the interval of state i at
stage h is entry i·H + h, and the statistics of its pair with action a entry (i·R + h)·K + a, where H is the number of
stages and R is H or 1. Without stages there is one, which follows itself. An illegal action has the interval [−∞, −∞].

The outcomes of a pair, its different successors and the count of each, are consecutive entries of arrays that all pairs
share. A pair whose entries are all in use moves to a larger place, so memory follows the outcomes that were seen.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints, frozen
from smoothplan.base.compiling import compiled
from smoothplan.base.records import Arrays, Readable
from smoothplan.base.streams import Stream
from smoothplan.models.model import GenerativeModel, effective_horizon, horizon_of, rewards_are_known, total_weight
from smoothplan.theory import curvature
from smoothplan.theory.backups import Backup, HardMax, at_zero_range, is_mixture
from smoothplan.theory.softmaxes import Softmaxes

PAIR = np.dtype(
    [
        ("count", np.int64),
        ("total", np.float64),  # of the rewards, scaled to [0, 1]; so are the next three
        ("squares", np.float64),
        ("least", np.float64),
        ("most", np.float64),
        ("reward_low", np.float64),  # the interval of the mean reward
        ("reward_high", np.float64),
        ("log_odds", np.float64),  # log(1/δ) for each of the pair's confidence sets
        ("level", np.float64),  # the radius of the ball of transition probabilities, in KL
        ("first_low", np.float64),  # the interval of the first outcome's probability, or of the most frequent one's
        ("first_high", np.float64),  # if there may be more than two
        ("start", np.int64),  # the first entry of its outcomes
        ("seen", np.int64),  # the number of its outcomes
        ("room", np.int64),  # the number of its entries
    ],
    align=True,
)
"""The statistics of a state and an action."""

TOTALS = np.dtype(
    [
        ("states", np.int64),  # discovered
        ("pairs", np.int64),  # sampled
        ("outcomes", np.int64),  # entries in use
        ("rounds", np.int64),
        ("chunks", np.int64),  # of samples drawn
        ("swept", np.int64),  # calls at the last sweep
        ("debt", np.int64),  # calls that focused rounds owe to trajectories
        ("stake", np.float64),  # the largest of recent focused walks, fading
    ],
    align=True,
)
"""Numbers of a whole graph."""

LONGEST_WALK = 10_000
"""Steps of a walk without stages: later ones are negligible at any discount below 0.999."""

NOWHERE, ENDED = -1, -2
"""In place of a successor: none yet, and the end of the episode, worth 0."""

FIXED, BY_OUTCOME, VARYING = range(3)
"""Kinds of rewards: one number for each pair; one for each outcome, which successor and reward tell apart; any."""


class Graph(NamedTuple):
    """The arrays. There is room for N states and M outcomes."""

    keys: Ints  # [N], the model's own number of a state
    low: Floats  # [N·H], the interval of the value
    high: Floats
    q_low: Floats  # [N·H·K], the interval of the action value
    q_high: Floats
    pairs: NDArray[np.void]  # [N·R·K] of PAIR
    successors: NDArray[np.int32]  # [M], of outcomes
    hits: Ints  # [M], the count of each outcome
    rewards: Floats  # [M] if they go with outcomes, else [1]
    slots: NDArray[np.int32]  # hash table of states by key
    totals: NDArray[np.void]  # [1] of TOTALS
    spent: Ints  # [K], simulator calls for each root action


class Rules(NamedTuple):
    """The constants of a search by bounds."""

    actions: int  # K
    bound: int  # B, the largest number of outcomes of a pair
    discount: float
    stages: int  # H
    endless: bool  # one stage that follows itself
    horizon: int  # the most steps of an episode from any state; 0 if there is no bound
    longest: int  # steps of a walk
    reach: float  # Σ γ^t over the steps of an episode, 1/(1 − γ) without a bound: later steps add up errors so far
    span_low: Floats  # [H + 1], bounds of any value at a stage; the last is after the last stage
    span_high: Floats
    reward_low: float
    reward_width: float
    kind: int  # of the rewards
    one_successor: bool  # whether outcomes with the same successor and another reward break a promise
    log_odds: float  # log(1/δ)
    union: float  # logarithm of the number of statements about the transitions of a pair
    soft: Softmaxes
    legal: NDArray[np.bool_]  # [.., K], by the key of a state; [0, K] if all actions are, everywhere
    first: int = 0  # the stage of the root
    records: int = 1  # R, stages that have statistics of their own: H, or 1 for pooled counts
    soft_share: float = 1.0  # the probability of a soft step; others are greedy
    focused: bool = True


class Workspace(NamedTuple):
    """Arrays that the kernels overwrite, and the backup."""

    frames: Floats  # [1, 1 + J, K + 1]
    room: Floats  # [4, ..], for the outcomes of a pair
    path: Ints  # [.., 3], the states, stages and actions of a walk
    backup: Any  # None for a mixture of softmaxes, which is in the rules; else a function that calls it in Python
    stream: Stream  # of the oracle


def rules_of(
    model: GenerativeModel,
    backup: Backup,
    delta: float,
    successors: int | None = None,
    horizon: int | None = None,
    tail: str = "honest",
    discount: float | None = None,
) -> Rules:
    """The rules of a focused search with pooled counts and soft walks. The arguments are those of `OTGapE`.

    A discount takes the place of the model's.
    """
    discount = model.discount if discount is None else discount
    successors = model.max_successors if successors is None else successors
    bound = 2**31 - 1  # no bound: the numbers of successors have 32 bits
    if successors is not None:
        bound = successor_bound("max_successors", successors) * (2 if model.reward_kind == "bernoulli" else 1)
    bounds = spans(model, backup, horizon, tail, discount)
    low, high = model.reward_range
    kind = BY_OUTCOME if model.reward_kind in ("bernoulli", "transition") else VARYING
    # A frame of one column, and walks by the policy, for a backup that is called.
    form, temperature = (backup, backup.temperature) if is_mixture(backup) else (HardMax(), 1.0)
    shifts = frozen(form.shifts(model.actions).T)
    return Rules(
        actions=model.actions,
        bound=bound,
        discount=discount,
        stages=horizon or 1,
        endless=horizon is None,
        horizon=horizon or horizon_of(model) or 0,
        longest=horizon or min(horizon_of(model) or LONGEST_WALK, LONGEST_WALK),
        reach=effective_horizon(model) if horizon is None else total_weight(discount, horizon),
        span_low=frozen(bounds[:, 0].copy()),
        span_high=frozen(bounds[:, 1].copy()),
        reward_low=low,
        reward_width=high - low,
        kind=FIXED if rewards_are_known(model) or not high > low else kind,
        one_successor=model.reward_kind == "transition",
        log_odds=-math.log(delta),
        # The sets of transitions hold for the unknown values: from below and from above, at every stage. Two outcomes
        # have one probability, and its interval holds for all values at once.
        union=math.log(2.0 * (horizon or 1)),
        soft=Softmaxes(temperature, shifts, frozen(np.ones((1, len(shifts))))),
        legal=frozen(np.zeros((0, model.actions), dtype=np.bool_)),
    )


def successor_bound(name: str, value: int) -> int:
    """A bound on successors that fits into the numbers of compiled code, also if it is doubled."""
    return arguments.whole(name, value, most=10**9)


def spans(
    model: GenerativeModel, backup: Backup, horizon: int | None, tail: str, discount: float | None = None
) -> Floats:
    """Bounds of any value at each stage, [H + 1, 2]: the last row is after the last stage."""
    curvature.require_rewards(model, "a search by bounds")
    discount = model.discount if discount is None else discount
    if horizon is None:
        return np.array(2 * [curvature.value_interval(model, backup)])
    at_zero = at_zero_range(backup, model)
    rows = [curvature.value_interval(model, backup) if tail == "honest" else (0.0, 0.0)]
    for _ in range(horizon):
        ends = zip(model.reward_range, at_zero, rows[-1], strict=True)
        low, high = (reward + zero + discount * later for reward, zero, later in ends)
        rows.append(curvature.with_the_end(model, low, high))
    return np.array(rows[::-1])


# Arrays that grow


def empty_slots(room: int) -> NDArray[np.int32]:
    """An empty hash table for `room` keys: a power of 2, and at most half full."""
    return np.full(1 << (2 * room - 1).bit_length(), NOWHERE, dtype=np.int32)


def resized(arrays: Readable, rules: Rules, room: int, outcomes: int) -> Graph:
    """A graph of these arrays with room for `room` states and `outcomes` outcomes; without arrays, an empty one."""
    stages, actions = rules.stages, rules.actions
    result = Graph(
        keys=np.zeros(room, dtype=np.int64),
        low=np.zeros(room * stages),
        high=np.zeros(room * stages),
        q_low=np.zeros(room * stages * actions),
        q_high=np.zeros(room * stages * actions),
        pairs=np.zeros(room * rules.records * actions, dtype=PAIR),
        successors=np.full(outcomes, NOWHERE, dtype=np.int32),
        hits=np.zeros(outcomes, dtype=np.int64),
        rewards=np.zeros(outcomes if rules.kind == BY_OUTCOME else 1),
        slots=empty_slots(room),
        totals=np.zeros(1, dtype=TOTALS),
        spent=np.zeros(actions, dtype=np.int64),
    )
    for name in set(Graph._fields) & set(arrays) - {"slots"}:
        array = getattr(result, name)
        kept = arrays[name][: len(array)]
        array[: len(kept)] = kept
    enter_all(result.slots, result.keys, result.totals[0]["states"])
    return result


def used(graph: Graph, rules: Rules) -> Arrays:
    """The used part of each array, copied. The hash table is made anew from these."""
    totals = graph.totals[0]
    arrays = resized(graph._asdict(), rules, int(totals["states"]), int(totals["outcomes"]))._asdict()
    del arrays["slots"]
    return arrays


@compiled
def enter_all(slots: NDArray[np.int32], keys: Ints, count: int) -> None:
    """Fills an empty hash table with the numbers of the first `count` keys."""
    for number in range(count):
        slots[slot_of(slots, keys, keys[number])] = number


@partial(compiled, inner=True)
def slot_of(slots: NDArray[np.int32], keys: Ints, key: int) -> int:
    """The place of a key in a hash table, which holds numbers of keys, or −1; its size is a power of 2."""
    mask = len(slots) - 1
    word = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)  # the golden ratio: neighbours end up far apart
    slot = int(word >> np.uint64(32)) & mask
    while slots[slot] >= 0 and keys[slots[slot]] != key:
        slot = (slot + 1) & mask
    return slot


@compiled
def discovered(graph: Graph, rules: Rules, key: int) -> int:
    """The number of the state with that key, which is new or known; there must be room for it."""
    slot = slot_of(graph.slots, graph.keys, key)
    if graph.slots[slot] >= 0:
        return int(graph.slots[slot])
    state = int(graph.totals[0].states)
    graph.totals[0].states += 1
    graph.slots[slot] = state
    graph.keys[state] = key
    for stage in range(rules.stages):
        node = state * rules.stages + stage
        later = stage if rules.endless else stage + 1
        graph.low[node], graph.high[node] = rules.span_low[stage], rules.span_high[stage]
        for action in range(rules.actions):
            entry = node * rules.actions + action
            graph.q_low[entry] = rules.reward_low + rules.discount * rules.span_low[later]
            graph.q_high[entry] = rules.reward_low + rules.reward_width + rules.discount * rules.span_high[later]
            if len(rules.legal) > 0 and not rules.legal[key, action]:
                graph.q_low[entry] = graph.q_high[entry] = -np.inf
    records = rules.actions * rules.records
    for entry in range(state * records, (state + 1) * records):
        pair = graph.pairs[entry]
        pair.reward_low, pair.reward_high = rules.reward_low, rules.reward_low + rules.reward_width
        pair.least, pair.most = np.inf, -np.inf
        pair.first_low, pair.first_high = 0.0, 1.0
    return state


@partial(compiled, inner=True)
def make_room(graph: Graph, rules: Rules, entry: int, more: int, room: Floats) -> bool:
    """Gives a pair a place for more outcomes; False if the arrays are full, or `room` [.., outcomes] is too small."""
    pair = graph.pairs[entry]
    wanted = min(pair.seen + more, rules.bound)
    if wanted <= pair.room:
        return True
    start, places = graph.totals[0].outcomes, min(max(wanted, 2 * pair.room, 2), rules.bound)
    if start + places > len(graph.hits) or places > room.shape[1]:
        return False
    graph.totals[0].outcomes += places
    for place in range(pair.seen):
        graph.successors[start + place] = graph.successors[pair.start + place]
        graph.hits[start + place] = graph.hits[pair.start + place]
        if rules.kind == BY_OUTCOME:
            graph.rewards[start + place] = graph.rewards[pair.start + place]
    pair.start, pair.room = start, places
    return True


@partial(compiled, merged=True)
def pair_at(rules: Rules, state: int, stage: int, action: int) -> int:
    """The entry of the statistics of a pair."""
    return (state * rules.records + min(stage, rules.records - 1)) * rules.actions + action


@partial(compiled, allocates=True)
def backwards(graph: Graph, rules: Rules) -> tuple[Ints, int]:
    """The states [n], each after all of its seen successors, and the most steps that were seen to follow any of them.

    If states follow themselves, which no horizon allows, there are fewer.
    """
    states, actions = graph.totals[0].states, rules.actions
    waiting, depths = np.zeros(states, dtype=np.int64), np.zeros(states, dtype=np.int64)
    # The outcomes that lead to a state are a linked list.
    first, following = np.full(states, -1), np.empty(len(graph.successors), dtype=np.int64)
    owners = np.empty(len(graph.successors), dtype=np.int64)
    for entry in range(states * actions - 1, -1, -1):
        pair = graph.pairs[entry]
        for outcome in range(pair.start + pair.seen - 1, pair.start - 1, -1):
            successor = graph.successors[outcome]
            if successor >= 0:
                following[outcome], first[successor] = first[successor], outcome
                owners[outcome] = entry // actions
                waiting[entry // actions] += 1
    order, count, place = np.empty(states, dtype=np.int64), 0, 0
    for state in range(states - 1, -1, -1):
        if waiting[state] == 0:
            order[count] = state
            count += 1
    while place < count:
        state, outcome = order[place], first[order[place]]
        place += 1
        while outcome >= 0:
            owner = owners[outcome]
            depths[owner] = max(depths[owner], depths[state] + 1)
            waiting[owner] -= 1
            if waiting[owner] == 0:
                order[count] = owner
                count += 1
            outcome = following[outcome]
    return order[:count], depths.max()
