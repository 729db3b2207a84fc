"""Intervals: of a pair's reward and transitions from its outcomes, of values from those of the successors.

At the root, the intervals of action values determine the leading action, its challenger and the gap between them.
"""

import math
from functools import partial
from typing import Any

import numpy as np

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
    BY_OUTCOME,
    ENDED,
    FIXED,
    VARYING,
    Graph,
    Rules,
    Workspace,
    discovered,
    make_room,
    pair_at,
)
from smoothplan.theory.softmaxes import fill_frame, frame_value

RECORDED, FULL, TOO_MANY, VARIES = range(4)
"""Verdicts on an outcome: counted; there is no room for it; the pair has more successors than declared; a reward that
is declared fixed varies."""


@partial(compiled, inner=True, inlined=True)
def record(graph: Graph, rules: Rules, entry: int, successor: int, reward: float, times: int, room: Floats) -> int:
    """Counts an outcome of a pair, `times` times, and returns a verdict; `refresh` updates intervals."""
    pair = graph.pairs[entry]
    if pair.seen == 0 and not make_room(graph, rules, entry, 1, room):
        return FULL
    if pair.count == 0:
        # Pairs spend δ in the order of their first sample; reward and transitions share the part of the pair.
        parts = int(rules.kind == VARYING) + int(rules.bound > 1)
        pair.log_odds = rules.log_odds - math.log(share(graph.totals[0].pairs)) + math.log(max(parts, 1))
        graph.totals[0].pairs += 1
        if rules.kind == FIXED:
            pair.reward_low = pair.reward_high = reward
    elif rules.kind == FIXED and reward != pair.reward_low:
        return VARIES
    place, end = pair.start, pair.start + pair.seen
    while place < end:
        if graph.successors[place] == successor:
            if rules.kind != BY_OUTCOME or graph.rewards[place] == reward:
                break
            if rules.one_successor and successor != ENDED:
                return VARIES
        place += 1
    if place == end:
        if pair.seen == rules.bound:
            return TOO_MANY
        if not make_room(graph, rules, entry, 1, room):
            return FULL
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
    graph: Graph, rules: Rules, entries: Ints, keys: Ints, rewards: Floats, times: Ints, room: Floats, start: int
) -> tuple[int, int]:
    """Counts outcomes [n] of pairs from `start` on, those of a pair together, and updates confidence sets.

    Next states are given by their keys, negative at the end of an episode. Returns the number of outcomes that were
    counted, from the first on, and the verdict on the last one that was tried.
    """
    for i in range(start, len(entries)):
        if graph.totals[0].states == len(graph.keys):
            return i, FULL
        successor = ENDED if keys[i] < 0 else discovered(graph, rules, keys[i])
        verdict = record(graph, rules, entries[i], successor, rewards[i], times[i], room)
        if verdict != RECORDED:
            return i, verdict
        if i == len(entries) - 1 or entries[i + 1] != entries[i]:
            refresh(graph, rules, entries[i])
    return len(entries), RECORDED


@partial(compiled, inner=True)
def refresh(graph: Graph, rules: Rules, entry: int) -> None:
    """The confidence sets of a pair after new outcomes."""
    pair = graph.pairs[entry]
    # The mean reward.
    if rules.kind == VARYING:
        low, high = mean_interval(pair.count, pair.total, pair.squares, pair.least, pair.most, pair.log_odds)
        pair.reward_low = max(pair.reward_low, rules.reward_low + rules.reward_width * low)
        pair.reward_high = max(pair.reward_low, min(pair.reward_high, rules.reward_low + rules.reward_width * high))
    # The transitions: the radius of their ball, and the interval of the most frequent one's probability.
    if rules.bound == 1:
        pair.first_low = pair.first_high = 1.0
        return
    hits = graph.hits[pair.start : pair.start + pair.seen]
    if rules.bound == 2:
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
    """The value of an outcome of a pair, less the reward of the pair; `later` is the stage of the successor.

    The outcome after the last one that was seen stands for all others, which may have any value.
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


@partial(compiled, inner=True)
def fill(frames: Floats, backup: Any, rules: Rules, key: int, q: Floats, wanted: int) -> None:
    """Puts action values [K] into the frame and applies the backup, see `fill_frame`, or calls it in Python."""
    for action in range(rules.actions):
        frames[0, 0, action] = q[action]
    if backup is None:  # Numba drops the other branch, but only for an argument
        fill_frame(frames, 0, rules.soft)
    else:
        # Defaults that prove nothing, a uniform policy and an infinite bound: they stay if the call fails.
        for action in range(rules.actions):
            frames[0, 1, action] = action + 1.0
        frames[0, 1, rules.actions] = wanted * np.inf
        backup(key, wanted)


@partial(compiled, inner=True)
def back_up(graph: Graph, rules: Rules, work: Workspace, state: int, stage: int) -> None:
    """Tightens the intervals of a state's actions and of its value. An interval never widens, nor turns over."""
    node, frames, key = state * rules.stages + stage, work.frames, graph.keys[state]
    start = node * rules.actions
    later = stage if rules.endless else stage + 1
    for action in range(rules.actions):
        sampled = pair_at(rules, state, stage, action)
        if graph.pairs[sampled].count > 0:
            low, high = _action_interval(graph, rules, sampled, later, work.room)
            entry = start + action
            graph.q_low[entry] = min(max(graph.q_low[entry], low), graph.q_high[entry])
            graph.q_high[entry] = max(min(graph.q_high[entry], high), graph.q_low[entry])
    # F of the lower bounds, then of the upper ones.
    fill(frames, work.backup, rules, key, graph.q_low[start:], LOWER)
    low = frame_value(frames, 0, key, rules.soft)
    graph.low[node] = min(max(graph.low[node], low), graph.high[node])
    fill(frames, work.backup, rules, key, graph.q_high[start:], UPPER)
    high = frame_value(frames, 0, key, rules.soft)
    graph.high[node] = max(min(graph.high[node], high), graph.low[node])


@partial(compiled, merged=True)
def sweep(graph: Graph, rules: Rules, work: Workspace) -> None:
    """Backs up everything, the latest discoveries first: they are mostly successors of earlier ones."""
    for stage in range(rules.stages - 1, -1, -1):
        for state in range(graph.totals[0].states - 1, -1, -1):
            back_up(graph, rules, work, state, stage)


@partial(compiled, inner=True, merged=True)
def slack(graph: Graph, rules: Rules, entry: int, later: int) -> float:
    """How far the uncertainty of a pair itself could move its value; samples of it reduce this and nothing else.

    That is the width of its reward, and the width of its transition probability times the range of the values that
    follow, at the stage `later`.
    """
    pair = graph.pairs[entry]
    low, high = np.inf, -np.inf
    for place in range(min(pair.seen + 1, rules.bound)):
        below, above = _worth(graph, rules, entry, place, later)
        low, high = min(low, below), max(high, above)
    width = 0.0 if rules.kind == BY_OUTCOME else pair.reward_high - pair.reward_low
    return float(width + (pair.first_high - pair.first_low) * (high - low))
