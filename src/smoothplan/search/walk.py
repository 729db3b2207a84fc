"""Where to sample next: UGapE at the root, then a walk along optimistic actions.

A focused walk follows the empirical model, which costs nothing, and samples the one pair on its way whose own
uncertainty matters most. A trajectory follows the simulator and samples every pair on its way. Where states recur a
focused walk may prefer a pair that is dear to sample once more; so repeated samples are insured by trajectories.
"""

import math

from smoothplan.arguments import Floats, Ints
from smoothplan.compiling import compiled
from smoothplan.engines.kernels import draw_action, draw_column, fill_frame
from smoothplan.models.tabular import Tables, draw
from smoothplan.search.bounds import FINE, back_up, record, refresh, slack, sweep, value_of
from smoothplan.search.graph import DEBT, ENDED, ROUNDS, STATES, SWEPT, Graph, Rules, discovered, following, pair_at
from smoothplan.search.ugape import leaders
from smoothplan.streams import CALLS, Stream, uniform

CONVERGED, PAUSED, FULL, BROKEN = range(4)
"""Why `explore` returned: the gap is within ε; enough for now; more room is needed; the model broke a promise."""

AMISS = -3
"""In place of a successor or a length: the model broke a promise."""

CUT = 0.2
"""A walk ends where the width that is left, discounted, is below this fraction of the gap at the root."""

GROWTH = 0.2
"""A pair is sampled again by this fraction of the samples that it has."""

LONGEST = 10_000
"""Steps of a walk, at most: what lies beyond does not matter at any discount below 0.999."""

SWEEP = 1.05
"""Everything is backed up whenever the calls have grown by this factor, and a little."""

INSURED = 3
"""For so many calls by which focused rounds repeat a pair, one call goes to trajectories."""

TRIFLE = 0.2
"""A walk on which less is at stake than this fraction of the largest of late leads to no sample: it was unlucky."""

FADING = 0.95
"""How the largest stake of late fades with every walk."""

IDLE = 100
"""Walks that found nothing to sample, after which the end of the walk is sampled all the same."""


@compiled
def wider(graph: Graph, best: int, challenger: int) -> int:
    """Of the best and the challenger the one with the wider interval."""
    first = graph.q_high[best] - graph.q_low[best]
    return best if first >= graph.q_high[challenger] - graph.q_low[challenger] else challenger


@compiled
def next_action(graph: Graph, rules: Rules, state: int, stage: int, frames: Floats, stream: Stream) -> int:
    """An action by ∇F(U), or the greedy one: argmax U."""
    start = (state * rules.stages + stage) * rules.actions
    soft = rules.soft.temperature > 0.0 and rules.soft_share > 0.0
    if soft and (rules.soft_share >= 1.0 or uniform(stream) < rules.soft_share):
        for action in range(rules.actions):
            frames[0, 0, action] = graph.q_high[start + action]
        fill_frame(frames, 0, rules.soft)
        return draw_action(frames, 0, draw_column(graph.keys[state], rules.soft, stream), stream)
    best = 0
    for action in range(1, rules.actions):
        if graph.q_high[start + action] > graph.q_high[start + best]:
            best = action
    return best


@compiled
def goes_on(graph: Graph, rules: Rules, successor: int, stage: int, steps: int, weight: float, gap: float) -> bool:
    """Whether a walk that has come to a successor at a stage goes on from there."""
    if successor == ENDED or stage == rules.stages or steps >= LONGEST:
        return False
    low, high = value_of(graph, rules, successor, stage)
    return not rules.endless or weight * (high - low) >= CUT * gap


@compiled
def seen_successor(graph: Graph, rules: Rules, entry: int, stream: Stream) -> int:
    """A successor of a pair that was sampled, drawn as often as it was seen."""
    level = uniform(stream) * graph.pairs[entry].count
    branch = 0
    while branch < rules.bound - 1 and level >= graph.hits[entry, branch]:
        level -= graph.hits[entry, branch]
        branch += 1
    return int(graph.successors[entry, branch])


@compiled
def focused_walk(
    graph: Graph, rules: Rules, action: int, gap: float, frames: Floats, path: Ints, stream: Stream
) -> tuple[int, int, float]:
    """Fills path [.., 3] with (state, stage, action); its length, the place to sample, and what is at stake there.

    A trifle counts as nothing: a walk that ends early may meet only pairs that are known well.
    """
    state, stage, steps, weight = 0, 0, 0, 1.0
    place, stake = 0, -1.0
    while True:
        path[steps, 0], path[steps, 1], path[steps, 2] = state, stage, action
        entry = pair_at(rules, state, stage, action)
        here = weight * slack(graph, rules, state, stage, action)
        if here > stake:
            place, stake = steps, here
        steps += 1
        if graph.pairs[entry].count == 0:
            break
        state = seen_successor(graph, rules, entry, stream)
        stage = following(rules, stage)
        weight *= rules.discount
        if not goes_on(graph, rules, state, stage, steps, weight, gap):
            break
        action = next_action(graph, rules, state, stage, frames, stream)
    graph.stake[0] = max(stake, FADING * graph.stake[0])
    return steps, place, stake if stake >= TRIFLE * graph.stake[0] else 0.0


@compiled
def batch_size(graph: Graph, entry: int) -> int:
    """How often a pair is sampled at once."""
    return max(1, int(GROWTH * graph.pairs[entry].count))


@compiled
def settle(graph: Graph, rules: Rules, calls: int, frames: Floats, room: Floats, path: Ints, steps: int) -> None:
    """Backs up the states of a path, the deepest first, and now and then everything."""
    graph.totals[ROUNDS] += 1
    for step in range(steps - 1, -1, -1):
        back_up(graph, rules, path[step, 0], path[step, 1], frames, room)
    if calls > SWEEP * graph.totals[SWEPT] + 10:
        graph.totals[SWEPT] = calls
        sweep(graph, rules, frames, room)


@compiled
def place_to_sample(steps: int, place: int, stake: float, idle: int) -> int:
    """Where on a focused walk to sample: nowhere (−1) if nothing is at stake, but at its end after many such walks."""
    if stake > 0.0:
        return place
    return steps - 1 if idle >= IDLE else -1


@compiled
def _sampled(graph: Graph, rules: Rules, tables: Tables, state: int, entry: int, action: int, stream: Stream) -> int:
    """One simulator call at a pair; the successor, or `AMISS`."""
    key, reward, end = draw(tables, graph.keys[state], action, stream)
    successor = ENDED if end else discovered(graph, rules, key)
    return successor if record(graph, rules, entry, successor, reward) == FINE else AMISS


@compiled
def sampled_batch(
    graph: Graph, rules: Rules, tables: Tables, state: int, entry: int, action: int, calls: int, stream: Stream
) -> bool:
    """A batch of at most so many simulator calls at a pair; whether the model kept its promises."""
    for _ in range(min(batch_size(graph, entry), calls)):
        if _sampled(graph, rules, tables, state, entry, action, stream) == AMISS:
            return False
    refresh(graph, rules, entry)
    return True


@compiled
def _focused_round(
    graph: Graph,
    rules: Rules,
    tables: Tables,
    action: int,
    gap: float,
    calls: int,
    idle: int,
    frames: Floats,
    path: Ints,
    stream: Stream,
) -> int:
    """A focused walk and a batch of at most so many calls; how much of the path to back up, or `AMISS`."""
    steps, place, stake = focused_walk(graph, rules, action, gap, frames, path, stream)
    place = place_to_sample(steps, place, stake, idle)
    if place < 0:
        return steps
    state, stage, sampled = path[place, 0], path[place, 1], path[place, 2]
    entry = pair_at(rules, state, stage, sampled)
    kept = sampled_batch(graph, rules, tables, state, entry, sampled, calls, stream)
    return place + 1 if kept else AMISS


@compiled
def _trajectory(
    graph: Graph,
    rules: Rules,
    tables: Tables,
    action: int,
    gap: float,
    calls: int,
    frames: Floats,
    path: Ints,
    stream: Stream,
) -> int:
    """A trajectory of at most so many calls; its length, or `AMISS`."""
    state, stage, steps, weight = 0, 0, 0, 1.0
    while True:
        path[steps, 0], path[steps, 1], path[steps, 2] = state, stage, action
        entry = pair_at(rules, state, stage, action)
        state = _sampled(graph, rules, tables, state, entry, action, stream)
        if state == AMISS:
            return AMISS
        refresh(graph, rules, entry)
        steps += 1
        stage = following(rules, stage)
        weight *= rules.discount
        if steps == calls or not goes_on(graph, rules, state, stage, steps, weight, gap):
            return steps
        action = next_action(graph, rules, state, stage, frames, stream)


@compiled
def owed(focused: bool, calls: int) -> int:
    """What a round of so many calls adds to the debt to trajectories. The first call of a focused round is free."""
    return max(calls - 1, 0) if focused else -INSURED * calls


@compiled
def _newcomers(graph: Graph, rules: Rules, tables: Tables, gap: float) -> int:
    """The states for which there must be room before a round, so that no walk is cut short for lack of it."""
    steps = rules.stages
    if rules.endless:
        left = CUT * gap / (rules.span_high[0] - rules.span_low[0])  # where a walk ends, of all that can be
        steps = 1 if left >= 1.0 or rules.discount == 0.0 else 2 + int(math.log(left) / math.log(rules.discount))
    states = len(tables.outcomes) // (tables.actions * tables.width)
    return max(rules.bound, min(steps, LONGEST, states - int(graph.totals[STATES])))


@compiled
def explore(
    graph: Graph,
    rules: Rules,
    tables: Tables,
    epsilon: float,
    until: int,
    limit: int,
    rounds: int,
    frames: Floats,
    room: Floats,
    path: Ints,
    stream: Stream,
) -> int:
    """Rounds of the search on a table, until one of the verdicts above; see `Explorer.explore`."""
    idle = 0
    for _ in range(rounds):
        best, challenger, gap = leaders(graph.q_low[: rules.actions], graph.q_high[: rules.actions])
        if gap <= epsilon:
            return CONVERGED
        before = int(stream[CALLS])
        if before >= until:
            return PAUSED
        if graph.totals[STATES] + _newcomers(graph, rules, tables, gap) > len(graph.keys):
            return FULL
        action = wider(graph, best, challenger)
        focused = rules.focused and graph.totals[DEBT] <= 0
        if focused:
            steps = _focused_round(graph, rules, tables, action, gap, until - before, idle, frames, path, stream)
        else:
            steps = _trajectory(graph, rules, tables, action, gap, limit - before, frames, path, stream)
        if steps == AMISS:
            return BROKEN
        made = int(stream[CALLS]) - before
        graph.totals[DEBT] += owed(focused, made)
        idle = 0 if made > 0 else idle + 1
        graph.spent[action] += made
        settle(graph, rules, before + made, frames, room, path, steps)
    return PAUSED
