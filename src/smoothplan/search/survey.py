"""Sampling for estimates instead of proofs: walks through the empirical model, to the pair that was sampled least.

Confidence bounds stay wide for long where the discount is close to 1, and a walk that follows them learns little. This
one follows estimates of the action values, and some curiosity.
"""

from smoothplan.arguments import Floats
from smoothplan.compiling import compiled
from smoothplan.models.tabular import Tables
from smoothplan.search.graph import ENDED, STATES, Graph, Rules
from smoothplan.search.walk import IDLE, LONGEST, sampled_batch, seen_successor
from smoothplan.streams import CALLS, Stream, uniform

CURIOSITY = 0.2
"""The probability of a random action at a step of a walk."""

FAR = 0.05
"""A walk ends where the discount leaves less than this."""

DONE, FULL, BROKEN = range(3)
"""Why `survey` returned: enough calls, or nothing left to learn; more room is needed; the model broke a promise."""


@compiled
def _least_sampled(graph: Graph, rules: Rules, state: int) -> int:
    best = 0
    for action in range(1, rules.actions):
        if graph.pairs[state * rules.actions + action].count < graph.pairs[state * rules.actions + best].count:
            best = action
    return best


@compiled
def _action(rules: Rules, q: Floats, state: int, stream: Stream) -> int:
    """The best action by q [n, K], which may lack the latest states; sometimes a random one."""
    if state >= len(q) or uniform(stream) < CURIOSITY:
        return int(uniform(stream) * rules.actions)
    best = 0
    for action in range(1, rules.actions):
        if q[state, action] > q[state, best]:
            best = action
    return best


@compiled
def curious_walk(graph: Graph, rules: Rules, q: Floats, start: int, stream: Stream) -> int:
    """Where on a walk from a state to sample: the entry of a pair, or −1 if all that was met is known for certain.

    It is a pair that was never sampled, or the one with the largest discount over the number of its samples. The
    statistics must be pooled over stages.
    """
    certain = rules.bound == 1 and not rules.varying
    state, weight = start, 1.0
    chosen, stake = -1, 0.0
    for _ in range(LONGEST):
        entry = state * rules.actions + _least_sampled(graph, rules, state)
        count = graph.pairs[entry].count
        if count == 0:
            return entry
        if not certain and weight / count > stake:
            chosen, stake = entry, weight / count
        entry = state * rules.actions + _action(rules, q, state, stream)
        state = seen_successor(graph, rules, entry, stream)
        weight *= rules.discount
        if state == ENDED or weight < FAR:
            break
    return chosen


@compiled
def survey(graph: Graph, rules: Rules, tables: Tables, q: Floats, start: int, until: int, stream: Stream) -> int:
    """Walks and samples on a table, until one of the verdicts above; see `Explorer.survey`."""
    idle = 0
    while int(stream[CALLS]) < until and idle < IDLE:
        if graph.totals[STATES] + rules.bound > len(graph.keys):
            return FULL
        entry = curious_walk(graph, rules, q, start, stream)
        if entry < 0:
            idle += 1
            continue
        idle = 0
        state, action = entry // rules.actions, entry % rules.actions
        if not sampled_batch(graph, rules, tables, state, entry, action, until - int(stream[CALLS]), stream):
            return BROKEN
    return DONE
