"""Intervals: of a pair's reward and transitions from its outcomes, of values from those of the successors.

At the root, intervals of action values say which action leads, which one challenges it, and the gap between them.
"""

import ctypes
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from smoothplan.base import arguments, stopping
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.confidence.kl import (
    ball_extreme,
    bernoulli_lower,
    bernoulli_upper,
    categorical_threshold,
    share,
    wager_regret,
)
from smoothplan.confidence.means import mean_interval
from smoothplan.graph.graph import (
    BAD_PAIR,
    BY_OUTCOME,
    ENDED,
    FIXED,
    PAIRS,
    ROUNDS,
    STATES,
    VARYING,
    VIOLATION,
    Graph,
    Rules,
    make_room,
    pair_at,
)
from smoothplan.theory.backups import Backup
from smoothplan.theory.softmaxes import fill_frame, frame_value

RECORDED, NO_ROOM, REFUSED = range(3)
"""What becomes of an outcome, see `record`."""

TOO_MANY, VARIES = range(2)
"""What `Graph.totals[VIOLATION]` says: more successors than declared; a reward declared fixed that varies."""


@partial(compiled, inner=True, inlined=True)
def record(graph: Graph, rules: Rules, entry: int, successor: int, reward: float, times: int, room: Floats) -> int:
    """Counts an outcome of a pair, so many times; `refresh` updates intervals.

    Returns `RECORDED`; `NO_ROOM` where there is no room for it, see `make_room`; `REFUSED` where it contradicts what
    the model declares.
    """
    pair = graph.pairs[entry]
    if pair.seen == 0 and not make_room(graph, rules, entry, 1, room):
        return NO_ROOM
    if pair.count == 0:
        # Pairs spend δ in the order of their first sample; reward and transitions share what a pair may spend.
        parts = int(rules.kind == VARYING) + int(rules.bound > 1)
        pair.log_odds = rules.log_odds - math.log(share(graph.totals[PAIRS])) + math.log(max(parts, 1))
        graph.totals[PAIRS] += 1
        if rules.kind == FIXED:
            pair.reward_low = pair.reward_high = reward
    elif rules.kind == FIXED and reward != pair.reward_low:
        graph.totals[BAD_PAIR], graph.totals[VIOLATION] = entry, VARIES
        return REFUSED
    place, end = pair.start, pair.start + pair.seen
    while place < end:
        if graph.successors[place] == successor:
            if rules.kind != BY_OUTCOME or graph.rewards[place] == reward:
                break
            if rules.one_successor and successor != ENDED:
                graph.totals[BAD_PAIR], graph.totals[VIOLATION] = entry, VARIES
                return REFUSED
        place += 1
    if place == end:
        if pair.seen == rules.bound:
            graph.totals[BAD_PAIR], graph.totals[VIOLATION] = entry, TOO_MANY
            return REFUSED
        if not make_room(graph, rules, entry, 1, room):
            return NO_ROOM
        place = pair.start + pair.seen
        pair.seen += 1
        graph.successors[place], graph.hits[place] = successor, 0
        if rules.kind == BY_OUTCOME:
            graph.rewards[place] = reward
    graph.hits[place] += times
    pair.count += times
    if rules.kind == VARYING:
        scaled = (reward - rules.reward_low) / rules.reward_width
        pair.total += times * scaled
        pair.squares += times * scaled * scaled
        pair.least, pair.most = min(pair.least, scaled), max(pair.most, scaled)
    return RECORDED


@compiled
def record_all(
    graph: Graph, rules: Rules, entries: Ints, successors: Ints, rewards: Floats, times: Ints, room: Floats, start: int
) -> int:
    """Counts outcomes [n] of pairs from `start` on, those of a pair together, and updates confidence sets.

    Returns where it stops: at n, for want of room at some i, or at −1 − i where an outcome contradicts the declaration.
    """
    for i in range(start, len(entries)):
        verdict = record(graph, rules, entries[i], successors[i], rewards[i], times[i], room)
        if verdict != RECORDED:
            return i if verdict == NO_ROOM else -1 - i
        if i == len(entries) - 1 or entries[i + 1] != entries[i]:
            refresh(graph, rules, entries[i])
    return len(entries)


@partial(compiled, inner=True)
def refresh(graph: Graph, rules: Rules, entry: int) -> None:
    """The confidence sets of a pair after new outcomes."""
    pair = graph.pairs[entry]
    # The mean reward.
    if rules.kind == VARYING:
        if rules.published < 0.0:
            low, high = mean_interval(pair.count, pair.total, pair.squares, pair.least, pair.most, pair.log_odds)
        else:
            level = (3.0 * math.log1p(math.log(pair.count)) + rules.published + rules.log_odds) / pair.count
            mean = min(pair.total / pair.count, 1.0)
            low, high = bernoulli_lower(mean, level), bernoulli_upper(mean, level)
        pair.reward_low = max(pair.reward_low, rules.reward_low + rules.reward_width * low)
        pair.reward_high = max(pair.reward_low, min(pair.reward_high, rules.reward_low + rules.reward_width * high))
    # The transitions: the radius of their ball, and the interval of the most frequent one's probability.
    if rules.bound == 1:
        pair.first_low = pair.first_high = 1.0
        return
    hits = graph.hits[pair.start : pair.start + pair.seen]
    if rules.published >= 0.0:
        pair.level = 0.1 * math.log(graph.totals[ROUNDS] + 1.0) / pair.count
    elif rules.bound == 2:
        pair.level = categorical_threshold(hits, 2, pair.log_odds) / pair.count
    else:
        pair.level = (pair.log_odds + rules.union + wager_regret(pair.count)) / pair.count
    first = hits[0]
    if rules.bound > 2:
        for place in range(1, pair.seen):
            first = max(first, hits[place])
    probability = first / pair.count
    pair.first_low = bernoulli_lower(probability, pair.level)
    pair.first_high = bernoulli_upper(probability, pair.level)


@partial(compiled, inner=True)
def _worth(graph: Graph, rules: Rules, entry: int, place: int, later: int) -> tuple[float, float]:
    """What an outcome of a pair is worth, less the reward of the pair; `later` is the stage of the successor.

    The outcome after the last one that was seen stands for all others, which may be worth anything.
    """
    pair = graph.pairs[entry]
    if place == pair.seen:
        low, high = rules.discount * rules.span_low[later], rules.discount * rules.span_high[later]
        if rules.kind == BY_OUTCOME:
            low, high = rules.reward_low + low, rules.reward_low + rules.reward_width + high
        return low, high
    place += pair.start
    reward = graph.rewards[place] if rules.kind == BY_OUTCOME else 0.0
    successor = graph.successors[place]
    if successor == ENDED:
        return reward, reward
    if later == rules.stages:
        return reward + rules.discount * rules.span_low[later], reward + rules.discount * rules.span_high[later]
    node = successor * rules.stages + later
    return reward + rules.discount * graph.low[node], reward + rules.discount * graph.high[node]


@partial(compiled, inner=True)
def _action_interval(graph: Graph, rules: Rules, entry: int, later: int, room: Floats) -> tuple[float, float]:
    """The interval of an action value: the extreme rewards and transitions, at the bounds of the successors' values.

    `later` is the stage of the successors; `room` [4, outcomes] is overwritten.
    """
    pair = graph.pairs[entry]
    reward_low, reward_high = (0.0, 0.0) if rules.kind == BY_OUTCOME else (pair.reward_low, pair.reward_high)
    if rules.bound <= 2:
        first_low, first_high = _worth(graph, rules, entry, 0, later)
        low, high = first_low, first_high
        if rules.bound == 2:
            second_low, second_high = _worth(graph, rules, entry, 1, later)
            chance = pair.first_low if first_low > second_low else pair.first_high
            low = chance * first_low + (1.0 - chance) * second_low
            chance = pair.first_high if first_high > second_high else pair.first_low
            high = chance * first_high + (1.0 - chance) * second_high
        return reward_low + low, reward_high + high
    for place in range(pair.seen):
        room[0, place] = graph.hits[pair.start + place] / pair.count
        low, high = _worth(graph, rules, entry, place, later)
        room[1, place], room[2, place] = -low, high  # the smallest expectation is minus the largest of minus the values
    least, most = math.inf, -math.inf
    if pair.seen < rules.bound:
        least, most = _worth(graph, rules, entry, pair.seen, later)
    shares = room[0, : pair.seen]
    low, _ = ball_extreme(shares, room[1, : pair.seen], -least, pair.level, 0.0)
    high, _ = ball_extreme(shares, room[2, : pair.seen], most, pair.level, 0.0)
    return reward_low - low, reward_high + high


LOWER, POLICY, UPPER = -1, 0, 1
"""The purpose of a backup: F of lower bounds, the policy at upper bounds, F of upper bounds."""


class Callback:
    """A backup at the action values in a frame, see `kernels.fill_frame`: F, or its policy as running sums.

    An error cannot pass through compiled code. It is kept until `check`; meanwhile calls leave the frame as it is, with
    what compiled code has written there, which proves nothing.

    Args:
        backup: F.
        frames: [1, 2, K + 1], where compiled code leaves the action values and finds what it asks for.
        state: from the key of a state in the graph to the state.
        stop: called after an error, to have compiled code return soon.
    """

    def __init__(self, backup: Backup, frames: Floats, state: Callable[[int], Any], stop: Callable[[], None]) -> None:
        self._backup, self._frame, self._state, self._stop = backup, frames[0], state, stop
        self._actions = frames.shape[2] - 1
        self._error: BaseException | None = None
        self.function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(self._call)

    def check(self) -> None:
        """Raises the error of an earlier call, if there was one."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _call(self, key: int, wanted: int) -> None:
        if self._error is not None:
            return
        try:
            actions, answer, name = self._actions, self._frame[1], type(self._backup).__name__
            running = stopping.current.get()
            if running is not None:
                running.check()
            q, states = self._frame[:1, :actions].copy(), np.asarray(self._state(key))[None]
            if wanted == POLICY:
                policy = arguments.distributions(f"policy of {name}", self._backup.policy(q, states), actions)
                answer[:actions] = np.cumsum(policy[0])
            else:
                answer[actions] = arguments.array(f"value of {name}", self._backup.value(q, states))[0]
        except BaseException as error:
            self._error = error
            self._stop()


@partial(compiled, inner=True)
def fill(frames: Floats, rules: Rules, key: int, wanted: int, backup: Any) -> None:
    """What the backup makes of the action values in the frame, see `fill_frame` and `Callback`."""
    if backup is None:
        fill_frame(frames, 0, rules.soft)
    else:
        # What proves nothing, a uniform policy and an infinite bound: it stays there if the call fails.
        for action in range(rules.actions):
            frames[0, 1, action] = action + 1.0
        frames[0, 1, rules.actions] = wanted * np.inf
        backup(key, wanted)


@partial(compiled, inner=True)
def back_up(graph: Graph, rules: Rules, state: int, stage: int, frames: Floats, room: Floats, backup: Any) -> None:
    """Tightens the intervals of a state's actions and of its value. An interval never widens, nor turns over.

    `backup` is None for a mixture of softmaxes, which is in the rules; else the function of a `Callback`.
    """
    node = state * rules.stages + stage
    start = node * rules.actions
    later = stage if rules.endless else stage + 1
    for action in range(rules.actions):
        sampled = pair_at(rules, state, stage, action)
        if graph.pairs[sampled].count > 0:
            low, high = _action_interval(graph, rules, sampled, later, room)
            entry = start + action
            graph.q_low[entry] = min(max(graph.q_low[entry], low), graph.q_high[entry])
            graph.q_high[entry] = max(min(graph.q_high[entry], high), graph.q_low[entry])
    # F of the lower bounds, then of the upper ones.
    for action in range(rules.actions):
        frames[0, 0, action] = graph.q_low[start + action]
    fill(frames, rules, graph.keys[state], LOWER, backup)
    low = frame_value(frames, 0, graph.keys[state], rules.soft)
    graph.low[node] = min(max(graph.low[node], low), graph.high[node])
    for action in range(rules.actions):
        frames[0, 0, action] = graph.q_high[start + action]
    fill(frames, rules, graph.keys[state], UPPER, backup)
    high = frame_value(frames, 0, graph.keys[state], rules.soft)
    graph.high[node] = max(min(graph.high[node], high), graph.low[node])


@partial(compiled, inner=True, merged=True)
def sweep(graph: Graph, rules: Rules, frames: Floats, room: Floats, backup: Any) -> None:
    """Backs up everything, the latest discoveries first: they are mostly successors of earlier ones."""
    for stage in range(rules.stages - 1, -1, -1):
        for state in range(graph.totals[STATES] - 1, -1, -1):
            back_up(graph, rules, state, stage, frames, room, backup)


@compiled
def sweep_once(graph: Graph, rules: Rules, frames: Floats, room: Floats, backup: Any) -> None:
    """A sweep from Python."""
    sweep(graph, rules, frames, room, backup)


@partial(compiled, inner=True, merged=True)
def slack(graph: Graph, rules: Rules, entry: int, later: int) -> float:
    """How far what is not known of a pair itself could move its value; samples of it reduce this and nothing else.

    That is the width of its reward, and what its transitions may still shift times the range of what they lead to, at
    the stage `later`.
    """
    pair = graph.pairs[entry]
    low, high = np.inf, -np.inf
    for place in range(min(pair.seen + 1, rules.bound)):
        below, above = _worth(graph, rules, entry, place, later)
        low, high = min(low, below), max(high, above)
    width = 0.0 if rules.kind == BY_OUTCOME else pair.reward_high - pair.reward_low
    return float(width + (pair.first_high - pair.first_low) * (high - low))


# The best action at the root


class BestAction(NamedTuple):
    """No action is better than the best one by more than the gap."""

    best: int
    challenger: int
    gap: float


def leaders(low: Floats, high: Floats) -> tuple[int, int, float]:
    """The best action, its challenger and the gap, from lower and upper bounds [K] each; see `ugape`."""
    best = 0
    for action in range(1, len(low)):
        if low[action] > low[best] or (low[action] == low[best] and high[action] > high[best]):
            best = action
    if len(low) == 1:
        return 0, 0, 0.0
    challenger = 1 if best == 0 else 0
    for action in range(len(low)):
        if action != best and high[action] > high[challenger]:
            challenger = action
    return best, challenger, high[challenger] - low[best]


compiled_leaders = compiled(leaders, inner=True, merged=True)


def ugape(intervals: Floats) -> tuple[int, int | None, float]:
    """The best action, its challenger, and the gap U(challenger) − L(best), from intervals [K, 2] (the paper's UGapE).

    The best action has the largest lower bound; among equals the larger upper bound decides, then the order. With one
    action there is no challenger and no gap.
    """
    best, challenger, gap = leaders(intervals[:, 0], intervals[:, 1])
    return best, challenger if len(intervals) > 1 else None, float(gap)


def best_action(cases: Floats) -> BestAction:
    """The action with the smallest gap, where one of several cases holds: intervals [m, K, 2], of all actions in each.

    Only differences within a case matter: its intervals may be those of action values less something common to all.
    """
    actions = cases.shape[1]
    if actions == 1:
        return BestAction(0, 0, 0.0)
    excess = cases[:, None, :, 1] - cases[:, :, None, 0]  # [m, best, challenger]
    excess[:, np.arange(actions), np.arange(actions)] = -np.inf
    worst = excess.max(axis=0)
    gaps = worst.max(axis=1)
    best = int(np.argmin(gaps))
    return BestAction(best, int(np.argmax(worst[best])), float(gaps[best]))
