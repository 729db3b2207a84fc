"""Bounds swept to convergence, from above or from below, of all discovered states.

Both sides are one computation: from below, everything changes its sign. Values may be taken relative to that of one
state, the *anchor*. With h(s) = V(s) − V(anchor), the Bellman equation becomes h(s) = F(r + γ·E h) − (1−γ)·V(anchor),
h(anchor) = 0. So bounds on h add up uncertainty until the anchor is reached, and not for ever. The values of two
actions differ only by rewards before the anchor: the rest is common to both.

Policy iteration finds the bounds: it alternates between the extreme transition probabilities of every pair, and the
values that follow if they stay as they are. It ends near the fixed point, on either side of it. The most that one more
step would add to any value, divided by 1 − γ, moves the result to the safe side, because a step adds at most γ times
the amount added to the values. So the result is a bound wherever the iteration ends.

If episodes end after a known number of steps, no state follows itself, at its stage: one sweep from the last states
back to the first is exact.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.confidence.kl import ball_extreme
from smoothplan.graph.graph import BY_OUTCOME, ENDED, VARYING, Graph, Rules, pair_at
from smoothplan.theory.softmaxes import fill_frame, frame_value


class Side(NamedTuple):
    """Upper bounds of n states at H stages and K actions, or lower bounds with their signs changed.

    They may be relative to an anchor. An illegal action has the value −∞, with the sign of the side.
    """

    side: int  # 1 from above, −1 from below
    anchor: int  # the number of a state, −1 for none
    base: float  # the value of the anchor, with the sign of the side; 0 if there is none
    values: Floats  # [n·H]
    q: Floats  # [n·H·K]
    bonus: Floats  # [n·H·K], how far q is from the estimate with these values: samples of the pair reduce it
    exponent: Floats  # [n·H·K], how fast: the bonus falls like count^(−exponent)
    own: Floats  # [n·H·K], q less the contribution of the seen successors
    ahead: Floats  # [n·H·K], how far the ν of `ball_extreme` was above the best value
    worst_case: Floats  # [M], the probabilities of outcomes that attain the bound; 0 for the end
    moves: Floats  # [n·H], how the last sweep changed values
    best: Ints  # [n·H], the action with the largest q from above, and with the smallest from below
    order: Ints  # [n], the states in the order of a sweep


def new_side(
    graph: Graph, rules: Rules, side: int, anchor: int = -1, value: float = 0.0, order: Ints | None = None
) -> Side:
    """The bounds before any iteration.

    `value` is that of the anchor: the smallest that is possible from above, the largest from below. The order is that
    of `Explorer.order`; by default the latest discoveries, mostly successors of earlier ones, are first.
    """
    states, outcomes = (int(graph.totals[0][name]) for name in ("states", "outcomes"))
    nodes = states * rules.stages
    base = side * value if anchor >= 0 else 0.0
    values = (graph.high[:nodes] if side > 0 else -graph.low[:nodes]) - base
    if anchor >= 0:
        values[anchor] = 0.0
    q, bonus, exponent, own, ahead = np.zeros((5, nodes * rules.actions))
    q[(graph.q_high if side > 0 else graph.q_low)[: len(q)] == -np.inf] = -side * np.inf
    moves, best = np.zeros(nodes), np.zeros(nodes, dtype=np.int64)
    order = np.arange(states)[::-1].copy() if order is None else order
    return Side(side, anchor, base, values, q, bonus, exponent, own, ahead, np.zeros(outcomes), moves, best, order)


@compiled
def converge(graph: Graph, rules: Rules, bounds: Side, frames: Floats, room: Floats, tolerance: float) -> None:
    """Tightens the bounds, to an accuracy of values, in a search with pooled counts.

    The arrays frames [1, 1 + J, K + 1] and room [4, outcomes] are overwritten.
    """
    actions, discount = rules.actions, rules.discount
    scale = max(abs(rules.span_low[0]), abs(rules.span_high[0]))
    enough = tolerance / rules.reach
    steps = 60  # improvements at most: a bound holds after any number, and policy iteration needs few
    for step in range(steps):
        surplus = change = 0.0
        for stage in range(rules.stages - 1, -1, -1):
            for state in bounds.order:
                node = state * rules.stages + stage
                for action in range(actions):
                    _extreme(graph, rules, bounds, state, stage, action, room)
                if node == bounds.anchor:
                    continue
                value = min(_value(graph, rules, bounds, state, stage, frames), _top(rules, bounds, stage))
                if rules.horizon > 0:  # one sweep is exact
                    bounds.values[node] = value
                change = max(change, abs(value - bounds.values[node]))
                surplus = max(surplus, value - bounds.values[node])
        if change <= enough or step == steps - 1:
            break
        _follow(graph, rules, bounds, enough / 10.0, frames)
    # Rounding changes a step by less than 1e-13 of the largest value, and later steps add up these errors.
    surplus = (surplus + 1e-13 * scale) * rules.reach
    for node in range(len(bounds.values)):
        if node != bounds.anchor:
            bounds.values[node] = min(bounds.values[node] + surplus, _top(rules, bounds, node % rules.stages))
    for entry in range(len(bounds.q)):
        bounds.q[entry] += discount * surplus


@partial(compiled, merged=True)
def _top(rules: Rules, bounds: Side, stage: int) -> float:
    """The value of a state that was not seen, at a stage."""
    return float((rules.span_high[stage] if bounds.side > 0 else -rules.span_low[stage]) - bounds.base)


@partial(compiled, inner=True)
def _extreme(graph: Graph, rules: Rules, bounds: Side, state: int, stage: int, action: int, room: Floats) -> None:
    """The largest action value of a pair that its confidence sets allow, and the probabilities that attain it."""
    pair, side, base = graph.pairs[pair_at(rules, state, stage, action)], bounds.side, bounds.base
    discount, entry = rules.discount, (state * rules.stages + stage) * rules.actions + action
    if bounds.q[entry] == -side * np.inf:  # it is illegal
        bounds.own[entry] = bounds.q[entry]
        return
    later = stage if rules.endless else stage + 1
    top = _top(rules, bounds, later)
    reward_top = rules.reward_low + rules.reward_width if side > 0 else -rules.reward_low
    constant = 0.0 if bounds.anchor < 0 else -(1.0 - discount) * base
    if pair.count == 0:
        bounds.q[entry] = bounds.own[entry] = reward_top + discount * top + constant
        bounds.bonus[entry], bounds.exponent[entry] = np.inf, 1.0
        return
    by_outcome = rules.kind == BY_OUTCOME
    reward = reward_bonus = 0.0
    if not by_outcome:
        reward = pair.reward_high if side > 0 else -pair.reward_low
        if rules.kind == VARYING:
            estimate = side * (rules.reward_low + rules.reward_width * pair.total / pair.count)
            reward_bonus = max(reward - estimate, 0.0)  # an interval that never widens may be beside the estimate
    mean, most = 0.0, -np.inf
    for place in range(pair.seen):
        outcome = pair.start + place
        successor = graph.successors[outcome]
        value = side * graph.rewards[outcome] if by_outcome else 0.0
        if successor == ENDED:
            value -= discount * base
        elif later == rules.stages:
            value += discount * top
        elif successor != bounds.anchor:
            value += discount * bounds.values[successor * rules.stages + later]
        room[0, place], room[1, place] = graph.hits[outcome] / pair.count, value
        mean += room[0, place] * value
        most = max(most, value)
    unseen = -np.inf
    if pair.seen < rules.bound:
        unseen = discount * top + (reward_top if by_outcome else 0.0)
    level = 0.0 if rules.bound == 1 else pair.level
    bound, pole = ball_extreme(room[0, : pair.seen], room[1, : pair.seen], unseen, level, bounds.ahead[entry])
    bounds.ahead[entry] = pole - max(most, unseen)
    reach, bonus = pole - bound, max(bound - mean, 0.0)
    # The probabilities that attain it; the remainder goes to unseen outcomes.
    seen, own = 0.0, 0.0
    for place in range(pair.seen):
        outcome = pair.start + place
        chance = room[0, place]
        if bonus > 0.0 and pole > room[1, place]:
            chance *= reach / (pole - room[1, place])
        bounds.worst_case[outcome] = chance
        seen += chance
    total = seen if seen > 1.0 or pair.seen == rules.bound else 1.0
    for outcome in range(pair.start, pair.start + pair.seen):
        successor, chance = graph.successors[outcome], bounds.worst_case[outcome] / total
        if by_outcome:
            own += chance * side * graph.rewards[outcome]
        if successor == ENDED:
            own -= chance * discount * base
        bounds.worst_case[outcome] = 0.0 if successor == ENDED else chance
    if seen < 1.0 and unseen > -np.inf:
        own += (1.0 - seen) * unseen
    bounds.q[entry] = reward + bound + constant
    bounds.own[entry] = reward + own + constant
    bounds.bonus[entry] = bonus + reward_bonus
    falls = min(reach * level, bonus) + 0.5 * reward_bonus
    bounds.exponent[entry] = min(max(falls / (bonus + reward_bonus), 0.3), 1.0) if bonus + reward_bonus > 0.0 else 1.0


@partial(compiled, inner=True)
def _value(graph: Graph, rules: Rules, bounds: Side, state: int, stage: int, frames: Floats) -> float:
    """The backup of the action values of a state; notes the best action."""
    node = state * rules.stages + stage
    first = node * rules.actions
    best = 0
    for action in range(1, rules.actions):
        if bounds.side * (bounds.q[first + action] - bounds.q[first + best]) > 0.0:
            best = action
    bounds.best[node] = best
    if rules.soft.temperature == 0.0:
        return float(bounds.q[first + best])
    for action in range(rules.actions):
        frames[0, 0, action] = bounds.side * bounds.q[first + action]
    fill_frame(frames, 0, rules.soft)
    return float(bounds.side * frame_value(frames, 0, graph.keys[state], rules.soft))


@partial(compiled, inner=True)
def _follow(graph: Graph, rules: Rules, bounds: Side, enough: float, frames: Floats) -> None:
    """Sweeps over the values with fixed probabilities, the latest discoveries first, until they settle.

    Changes soon shrink by the same factor with each sweep, which is close to 1. Once that factor varies by less than a
    tenth of its distance from 1, all changes to come are added up at once. 5,000 sweeps bound the time.
    """
    actions, top = rules.actions, _top(rules, bounds, 0)
    greedy = rules.soft.temperature == 0.0
    bounds.moves[:] = 0.0
    factor = 0.0
    for _ in range(5_000):
        change = product = square = 0.0
        for state in bounds.order:
            if state == bounds.anchor:
                continue
            for action in range(actions):
                if greedy and action != bounds.best[state]:
                    continue
                entry = state * actions + action
                pair, total = graph.pairs[entry], 0.0
                for outcome in range(pair.start, pair.start + pair.seen):
                    successor = graph.successors[outcome]
                    if successor >= 0:  # the anchor's value is 0
                        total += bounds.worst_case[outcome] * bounds.values[successor]
                bounds.q[entry] = bounds.own[entry] + rules.discount * total
            value = bounds.q[state * actions + bounds.best[state]]
            if not greedy:
                value = _value(graph, rules, bounds, state, 0, frames)
            value = min(value, top)
            move, last = value - bounds.values[state], bounds.moves[state]
            change = max(change, abs(move))
            product += move * last
            square += last * last
            bounds.values[state], bounds.moves[state] = value, move
        if change <= enough:
            return
        before, factor = factor, product / square if square > 0.0 else 0.0
        if 0.0 < factor < 1.0 and abs(factor - before) <= 0.1 * (1.0 - factor):
            for state in range(len(bounds.values)):
                bounds.values[state] = min(bounds.values[state] + bounds.moves[state] * factor / (1.0 - factor), top)
                bounds.moves[state] = 0.0
            factor = 0.0


@compiled
def flow(
    graph: Graph, rules: Rules, bounds: Side, policy: Floats, action: int, waiting: Floats, result: Floats
) -> None:
    """The discounted numbers of visits of pairs, [n·H·K]: an action at the root, then a policy, in the empirical model.

    Visits end at the anchor of bounds, and follow their order. They are accurate to about a hundredth. `policy` has
    probabilities of actions, [n·H·K]; waiting [n·H] and result [n·H·K] are overwritten.
    """
    waiting[:] = 0.0
    result[:] = 0.0
    actions, stages, successors = rules.actions, rules.stages, graph.successors
    result[rules.first * actions + action] = 1.0
    pair = graph.pairs[pair_at(rules, 0, rules.first, action)]
    after = rules.first if rules.endless else rules.first + 1
    for outcome in range(pair.start, pair.start + pair.seen):
        if successors[outcome] >= 0 and after < stages:
            waiting[successors[outcome] * stages + after] += rules.discount * graph.hits[outcome] / pair.count
    total = 1.0
    while True:
        moved = 0.0
        for stage in range(stages):
            later = stage if rules.endless else stage + 1
            for state in bounds.order[::-1]:
                node = state * stages + stage
                weight = waiting[node]
                if weight == 0.0:
                    continue
                waiting[node] = 0.0
                if state == bounds.anchor:
                    continue
                moved += weight
                for choice in range(actions):
                    entry = node * actions + choice
                    if policy[entry] > 0.0:
                        result[entry] += weight * policy[entry]
                        pair = graph.pairs[pair_at(rules, state, stage, choice)]
                        if later == stages:
                            continue
                        each = rules.discount * weight * policy[entry] / pair.count
                        for outcome in range(pair.start, pair.start + pair.seen):
                            if successors[outcome] >= 0:
                                waiting[successors[outcome] * stages + later] += each * graph.hits[outcome]
        total += moved
        if moved * rules.reach <= 0.01 * total:
            return
