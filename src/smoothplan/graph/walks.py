"""The loop of a search by bounds: select a pair, sample it, absorb the outcomes.

*Select*: UGapE at the root chooses an action; a walk along optimistic actions leads from there to the pair to sample.
A focused walk follows the empirical model, which costs nothing, and chooses the pair on its way whose own uncertainty
matters most. A trajectory follows the simulator and samples every pair on its way. If states recur, a focused walk may
prefer a pair that is expensive to sample again; so repeated samples are insured by trajectories. A survey samples for
estimates instead of proofs: its walk follows estimates of the action values, with some random actions. In a survey of a
simulator, walks plan a batch of samples for one call of `step`.

*Sample*: compiled code draws from a table; otherwise `proceed` returns, and its caller asks the simulator.

*Absorb*: the outcomes, the confidence sets of the pair, then the bounds of the states on the way to it.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.base.streams import CALLS, Stream, uniform
from smoothplan.confidence.means import compiled_leaders
from smoothplan.graph.graph import ENDED, VARYING, Graph, Rules, Workspace, discovered, make_room, pair_at
from smoothplan.graph.sets import FULL, POLICY, RECORDED, back_up, fill, record, refresh, slack, sweep
from smoothplan.models.tabular import Tables, draw
from smoothplan.theory.softmaxes import draw_action, draw_column

SAMPLE, PAUSED, CONVERGED, TOO_LONG = range(4, 8)
"""Verdicts of `proceed`, beside those of `sets.record`: the simulator is to be called; the request is complete; the gap
is within ε; an episode is longer than the horizon."""


class WalkTuning(NamedTuple):
    """The numbers that tune walks. Any others are valid too: they change the price of a search, and nothing else."""

    growth: float = 0.2  # a pair is sampled again by this fraction of the samples that it has
    # Focused walks.
    cut: float = 0.2  # a walk ends once the remaining width, discounted, is below this fraction of the gap at the root
    negligible: float = 0.2  # a walk samples nothing if its largest stake is below this fraction of the recent largest
    fading: float = 0.95  # the recent largest stake fades by this factor with every walk
    idle: int = 100  # after this many walks without a sample, the end of the walk is sampled, and a survey ends
    repeats_per_step: int = 3  # repeated calls of focused walks for which trajectories make one call
    sweep: float = 1.05  # everything is backed up whenever the calls have grown by this factor, and by ten
    # Surveys.
    explore_rate: float = 0.2  # the probability of a random action
    far: float = 0.05  # a survey's walk ends once its discount is below this
    batch: int = 128  # a survey of a simulator samples a batch of one in this many of the calls made before


WALKING = WalkTuning()

LOOP_STATE = np.dtype(
    [
        # The request.
        ("epsilon", np.float64),
        ("until", np.int64),  # no round begins after this many calls in all
        ("limit", np.int64),  # and no call is made after this many
        ("rounds", np.int64),  # rounds that may still begin
        ("start", np.int64),  # the first state of the walks of a survey; −1 for a search
        # The round.
        ("action", np.int64),  # at the root
        ("gap", np.float64),  # at the root, when the round began
        ("focused", np.bool_),
        ("steps", np.int64),  # of the path, as far as it is to be backed up
        ("weight", np.float64),  # the discount after these steps
        ("idle", np.int64),  # walks in a row without a sample
        # The pair to sample.
        ("state", np.int64),
        ("stage", np.int64),
        ("sampled", np.int64),  # its action
        ("entry", np.int64),
        ("count", np.int64),  # samples to make
        ("selected", np.bool_),  # whether it waits for outcomes, or for room for them
        ("absorbed", np.int64),  # outcomes that are recorded already
    ],
    align=True,
)
"""The state of a search between two samples."""


@partial(compiled, inner=True)
def next_action(graph: Graph, rules: Rules, work: Workspace, state: int, stage: int) -> int:
    """An action by ∇F(U), or the greedy one: argmax U."""
    frames, stream = work.frames, work.stream
    start = (state * rules.stages + stage) * rules.actions
    soft = rules.soft.temperature > 0.0 and rules.soft_share > 0.0
    if soft and (rules.soft_share >= 1.0 or uniform(stream) < rules.soft_share):
        fill(frames, work.backup, rules, graph.keys[state], graph.q_high[start:], POLICY)
        return draw_action(frames, 0, draw_column(graph.keys[state], rules.soft, stream), stream)
    best = 0
    for action in range(1, rules.actions):
        if graph.q_high[start + action] > graph.q_high[start + best]:
            best = action
    return best


@partial(compiled, merged=True)
def goes_on(graph: Graph, rules: Rules, successor: int, stage: int, steps: int, weight: float, gap: float) -> bool:
    """Whether a walk that has come to a successor at a stage goes on from there."""
    if successor == ENDED or steps >= rules.longest:
        return False
    node = successor * rules.stages + stage
    return not rules.endless or weight * (graph.high[node] - graph.low[node]) >= WALKING.cut * gap


@partial(compiled, inner=True, merged=True)
def seen_successor(graph: Graph, entry: int, stream: Stream) -> int:
    """A successor of a pair that was sampled, drawn as often as it was seen."""
    pair = graph.pairs[entry]
    level = uniform(stream) * pair.count
    place, last = pair.start, pair.start + pair.seen - 1
    while place < last and level >= graph.hits[place]:
        level -= graph.hits[place]
        place += 1
    return int(np.int64(graph.successors[place]))  # for kernels that are compiled for one kind of integer


@partial(compiled, inner=True)
def _focused_walk(graph: Graph, rules: Rules, work: Workspace, loop: NDArray[np.void]) -> bool:
    """Fills the path; sets `steps` up to the pair to sample, or to all of it and returns False if there is none."""
    now, path = loop[0], work.path
    state, stage, action, steps, weight = now.state, now.stage, now.sampled, 0, 1.0
    place, stake = 0, -1.0
    while True:
        path[steps, 0], path[steps, 1], path[steps, 2] = state, stage, action
        entry = pair_at(rules, state, stage, action)
        stage = stage if rules.endless else stage + 1
        here = weight * slack(graph, rules, entry, stage)
        if here > stake:
            place, stake = steps, here
        steps += 1
        if graph.pairs[entry].count == 0:
            break
        state = seen_successor(graph, entry, work.stream)
        weight *= rules.discount
        if not goes_on(graph, rules, state, stage, steps, weight, now.gap):
            break
        action = next_action(graph, rules, work, state, stage)
    # Ignores negligible stakes: a walk that ends early may meet only pairs that are known well.
    graph.totals[0].stake = max(stake, WALKING.fading * graph.totals[0].stake)
    if stake > 0.0 and stake >= WALKING.negligible * graph.totals[0].stake:
        now.steps = place + 1
        return True
    now.steps = steps
    return bool(now.idle >= WALKING.idle)


@partial(compiled, inner=True)
def _exploring_walk(graph: Graph, rules: Rules, q: Floats, planned: Ints, start: int, stream: Stream) -> int:
    """The pair to sample on a walk from a state: its entry, or −1 if all that was met is known for certain.

    It is a pair that was never sampled, or the one with the largest discount over the number of its samples. Samples
    that are planned [n·K] count as made; the array may lack the latest pairs. The statistics must be pooled over
    stages. The walk follows the best action by q [n·H, K], which may lack the latest states, and sometimes a random
    one. It starts from the entry of a state at a stage.
    """
    certain = rules.bound == 1 and rules.kind != VARYING
    (state, stage), weight = divmod(start, rules.stages), 1.0
    chosen, stake = -1, 0.0
    for _ in range(rules.longest):
        # The action that was sampled least is a candidate.
        first, node = state * rules.actions, state * rules.stages + stage
        least, count, legal = 0, np.int64(2**62), 0
        for action in range(rules.actions):
            entry = first + action
            if graph.q_high[node * rules.actions + action] == -np.inf:  # it is illegal
                continue
            legal += 1
            known = graph.pairs[entry].count + (planned[entry] if entry < len(planned) else 0)
            if known < count:
                least, count = action, known
        if count == 0:
            return first + least
        if not certain and weight / count > stake:
            chosen, stake = first + least, weight / count
        # The action to follow.
        best = 0
        if node >= len(q) or uniform(stream) < WALKING.explore_rate:
            left = int(uniform(stream) * legal)
            best = -1
            while left >= 0:
                best += 1
                left -= graph.q_high[node * rules.actions + best] > -np.inf
        else:
            for action in range(1, rules.actions):
                if q[node, action] > q[node, best]:
                    best = action
        if graph.pairs[first + best].count == 0:  # its samples are only planned
            break
        state = seen_successor(graph, first + best, stream)
        weight *= rules.discount
        stage = stage if rules.endless else stage + 1
        if state == ENDED or stage == rules.stages or weight < WALKING.far:
            break
    return chosen


@compiled
def plan_survey(graph: Graph, rules: Rules, q: Floats, start: int, most: int, planned: Ints, stream: Stream) -> int:
    """Fills `planned` [n·K], zeros, with samples that walks of a survey choose; returns their number, at most `most`.

    There are fewer if many walks in a row find nothing to sample.
    """
    total = idle = 0
    while total < most and idle < WALKING.idle:
        entry = _exploring_walk(graph, rules, q, planned, start, stream)
        idle = idle + 1 if entry < 0 else 0
        if entry >= 0:
            more = min(max(1, int(WALKING.growth * graph.pairs[entry].count)), most - total)
            planned[entry] += more
            total += more
    return total


@partial(compiled, inner=True)
def select(graph: Graph, rules: Rules, work: Workspace, loop: NDArray[np.void], q: Floats | None) -> int:
    """Chooses a pair and the number of its samples, which may be none; `SAMPLE`, or another verdict of `proceed`."""
    now, calls = loop[0], int(work.stream[CALLS])

    if q is not None:  # a survey
        if calls >= now.until or now.idle >= WALKING.idle:
            return PAUSED
        entry = _exploring_walk(graph, rules, q, graph.spent[:0], now.start, work.stream)
        now.count = 0
        if entry >= 0:
            now.state, now.stage, now.sampled, now.entry = entry // rules.actions, 0, entry % rules.actions, entry
            now.count = min(max(1, int(WALKING.growth * graph.pairs[entry].count)), now.until - calls)
        return SAMPLE

    if now.steps == 0:  # a new round
        root = slice(rules.first * rules.actions, (rules.first + 1) * rules.actions)
        low, high = graph.q_low[root], graph.q_high[root]
        best, challenger, gap = compiled_leaders(low, high)
        if now.rounds == 0:
            return PAUSED
        if gap <= now.epsilon:
            return CONVERGED
        if calls >= now.until:
            return PAUSED
        # The best or the challenger, whichever has the wider interval.
        wider = high[best] - low[best] >= high[challenger] - low[challenger]
        now.action, now.gap, now.rounds = best if wider else challenger, gap, now.rounds - 1
        now.focused = rules.focused and graph.totals[0].debt <= 0
        now.state, now.stage, now.sampled, now.weight, now.count = 0, rules.first, now.action, 1.0, 1
        if now.focused:
            found = _focused_walk(graph, rules, work, loop)
            last = now.steps - 1
            now.state, now.stage, now.sampled = work.path[last, 0], work.path[last, 1], work.path[last, 2]
            now.entry = pair_at(rules, now.state, now.stage, now.sampled)
            more = max(1, int(WALKING.growth * graph.pairs[now.entry].count))
            now.count = min(more, now.until - calls) if found else 0
            return SAMPLE

    # The next step of a trajectory.
    work.path[now.steps, 0], work.path[now.steps, 1], work.path[now.steps, 2] = now.state, now.stage, now.sampled
    now.entry = pair_at(rules, now.state, now.stage, now.sampled)
    now.steps += 1
    return SAMPLE


@partial(compiled, inner=True)
def absorb(graph: Graph, rules: Rules, work: Workspace, loop: NDArray[np.void], successor: int) -> None:
    """Updates intervals after the pair's outcomes, of which `successor` is the last, were recorded."""
    now = loop[0]
    now.idle = 0 if now.count > 0 else now.idle + 1
    if now.count > 0:
        refresh(graph, rules, now.entry)
    if now.start >= 0:
        return
    # Charges the calls to the round's action and to the debt to trajectories; the first of a focused round is free.
    graph.spent[now.action] += now.count
    graph.totals[0].debt += max(now.count - 1, 0) if now.focused else -WALKING.repeats_per_step * now.count
    calls = int(work.stream[CALLS])
    if not now.focused:  # a trajectory may go on
        now.stage = now.stage if rules.endless else now.stage + 1
        now.weight *= rules.discount
        if calls < now.limit and goes_on(graph, rules, successor, now.stage, now.steps, now.weight, now.gap):
            now.state = successor
            now.sampled = next_action(graph, rules, work, successor, now.stage)
            return
    # The round is over: back up its path, the deepest state first, and now and then everything.
    graph.totals[0].rounds += 1
    for step in range(now.steps - 1, -1, -1):
        back_up(graph, rules, work, work.path[step, 0], work.path[step, 1])
    now.steps = 0
    if calls > WALKING.sweep * graph.totals[0].swept + 10:
        graph.totals[0].swept = calls
        sweep(graph, rules, work)


@compiled
def proceed(
    graph: Graph,
    rules: Rules,
    work: Workspace,
    loop: NDArray[np.void],
    tables: Tables,
    q: Floats | None,
    keys: Ints,
    rewards: Floats,
) -> int:
    """Goes on with a search until one of the verdicts above, or until an outcome cannot be recorded.

    `loop` [1] is the request and the state of the search. If the tables are empty, `SAMPLE` asks the caller for
    `loop.count` outcomes of the action `loop.sampled` at the state `loop.state`: their keys, negative at the end of an
    episode, and rewards. A survey follows the estimates q [n, K] of the first n discovered states; a search has none.
    """
    now = loop[0]
    simulated = len(tables.outcomes) == 0
    successor = ENDED
    while True:
        if not now.selected:
            verdict = select(graph, rules, work, loop, q)
            if verdict != SAMPLE:
                return verdict
            now.selected, now.absorbed, successor = True, 0, ENDED
            if simulated and now.count > 0:
                return SAMPLE
        if not simulated:  # room for all that the samples may bring
            more = min(now.count, tables.width)
            full = graph.totals[0].states + more > len(graph.keys)
            if full or not make_room(graph, rules, now.entry, more, work.room):
                return FULL
        for i in range(now.absorbed, now.count):
            if simulated:
                now.absorbed = i
                if graph.totals[0].states == len(graph.keys):
                    return FULL
                key, reward, end = keys[i], rewards[i], keys[i] < 0
            else:
                key, reward, end = draw(tables, graph.keys[now.state], now.sampled, work.stream)
            successor = ENDED if end else discovered(graph, rules, key)
            verdict = record(graph, rules, now.entry, successor, reward, 1, work.room)
            if verdict != RECORDED:
                return verdict
        if rules.horizon > 0 and rules.endless and now.steps >= rules.horizon and successor != ENDED:
            return TOO_LONG  # all transitions of the path were seen
        absorb(graph, rules, work, loop, successor)
        now.selected = False
