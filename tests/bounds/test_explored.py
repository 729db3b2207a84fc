"""The explored graph as JSON and as text for Graphviz."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.bounds.gape import Explored, MDPGapE, OTGapE, explored
from tests.common import begun, ending, identified, in_the_plane

ROUNDING = 1e-14
"""Relative: the intervals of a result are rounded outward."""

HOSTILE = """<b a='1'>&amp;"]]>\\N \\" {x} // \x00\x1b[31m \ud800 \n -> é"""
"""Means something to XML, to Graphviz, to a terminal, or to an encoder."""


def _search(planner: Any, model: Any, state: Any = 0, **limits: Any) -> tuple[sp.PlanResult, Explored]:
    result = sp.plan(planner, model, state, **limits)
    graph = identified(result).graph
    assert isinstance(graph, Explored)
    return result, graph


def _river(calls: int = 5_000) -> tuple[sp.PlanResult, Explored]:
    return _search(MDPGapE(epsilon=0.01), sp.models.river_swim(discount=0.9), max_calls=calls)


def _named(state_names: list[str], action_names: list[str]) -> sp.TabularModel:
    """Two states; the second action may end."""
    outcomes = [
        [[(0.5, 0, 0.0, False), (0.5, 1, 0.5, False)], [(0.3, 1, 1.0, True), (0.7, 1, 0.0, False)]],
        [[(1.0, 0, 1.0, False)], [(1.0, 1, 0.0, True)]],
    ]
    return sp.TabularModel.from_outcomes(
        outcomes, discount=0.7, reward_range=(0.0, 1.0), state_names=state_names, action_names=action_names
    )


def _assert_graphviz(text: str) -> None:
    """A line is a comment, a brace, or a statement with quoted texts; lines join nodes that there are."""
    string = r'"(?:[^"\\\n]|\\.)*"'
    attributes = rf"\[\w+=(?:{string}|[\w.#]+)(?:, \w+=(?:{string}|[\w.#]+))*\];"
    lines = text.splitlines()
    assert lines[0] == "digraph explored {"
    assert lines[-1] == "}"
    nodes, joined = {"graph", "node", "edge"}, set[str]()
    for line in lines[1:-1]:
        found = re.fullmatch(rf"  (\w+)(?: -> (\w+))? {attributes}", line)
        assert found, line
        if found[2] is None:
            nodes.add(found[1])
        else:
            joined |= {found[1], found[2]}
    assert joined <= nodes
    program = shutil.which("dot")
    if program is not None:
        subprocess.run([program, "-Tsvg"], input=text.encode(), check=True, capture_output=True, timeout=60)


def test_json_agrees_with_the_result() -> None:
    result, graph = _river()
    report = identified(result)
    assert report is not None
    data = json.loads(graph.to_json())
    assert "graph" not in json.loads(result.to_json())["details"]
    assert data["gap"] == report.gap
    assert data["calls"] == result.calls
    assert result.q_intervals is not None
    np.testing.assert_allclose(data["q_intervals"], result.q_intervals, rtol=ROUNDING)
    assert len(data["states"]) == data["states_discovered"] == report.states
    assert len(data["pairs"]) == data["pairs_sampled"] == report.pairs
    np.testing.assert_allclose(data["states"][0]["interval"], result.interval, rtol=ROUNDING)
    assert data["states"][0]["name"] == "place 0"
    assert sum(pair["count"] for pair in data["pairs"]) == result.calls
    assert sum(pair["count"] for pair in data["pairs"] if pair["state"] == 0) == result.samples
    for pair in data["pairs"]:
        if pair["state"] == 0:
            assert pair["q"] == data["q_intervals"][pair["action"]]
        assert pair["name"] == ("left", "right")[pair["action"]]
        assert sum(seen["count"] for seen in pair["successors"]) == pair["count"]


@pytest.mark.parametrize("sampling", ["focused", "trajectories"])
@pytest.mark.parametrize("engine", ["compiled", "batched"])
def test_depths_are_the_fewest_steps(sampling: Any, engine: Any) -> None:
    model = sp.models.garnet(states=60, actions=3, branching=3, discount=0.8, seed=3)
    planner = OTGapE(sp.LogSumExp(0.5), epsilon=0.01, sampling=sampling)
    _, graph = _search(planner, model, 7, max_calls=500, engine=engine)
    data = json.loads(graph.to_json())
    assert data["states"][0]["state"] == 7
    assert data["states"][0]["name"] is data["pairs"][0]["name"] is None
    ahead: defaultdict[int, set[int]] = defaultdict(set)
    for pair in data["pairs"]:
        ahead[pair["state"]] |= {seen["state"] for seen in pair["successors"]}
    depths, latest = {0: 0}, {0}
    while latest:
        latest = {number for state in latest for number in ahead[state]} - depths.keys()
        depths |= dict.fromkeys(latest, 1 + max(depths.values()))
    assert {state["number"]: state["depth"] for state in data["states"]} == depths


@pytest.mark.parametrize("counts", ["pooled", "stage-wise"])
@pytest.mark.parametrize("tail", ["honest", "zero"])
def test_a_finite_horizon_has_states_at_stages(counts: Any, tail: Any) -> None:
    model = sp.models.garnet(states=8, actions=2, branching=2, discount=0.9, seed=1)
    planner = OTGapE(sp.LogSumExp(0.5), epsilon=0.01, horizon=3, counts=counts, tail=tail)
    result, graph = _search(planner, model, 0, max_calls=400)
    data = json.loads(graph.to_json())
    nodes = {(state["number"], state["stage"]): state for state in data["states"]}
    assert len(nodes) == len(data["states"])
    assert [node for node in nodes if node[1] == 0] == [(0, 0)]
    assert all(state["depth"] == state["stage"] <= 3 for state in data["states"])
    np.testing.assert_allclose(nodes[0, 0]["interval"], result.interval, rtol=ROUNDING)
    reached = {(0, 0)}
    for pair in data["pairs"]:
        reached |= {(seen["state"], pair["stage"] + 1) for seen in pair["successors"]}
    assert reached == nodes.keys()
    last = [state["interval"] for state in data["states"] if state["stage"] == 3]
    assert last
    assert all((low == high == 0.0) == (tail == "zero") for low, high in last)
    if counts == "stage-wise":
        assert sum(pair["count"] for pair in data["pairs"]) == result.calls
    else:
        pooled = {(pair["state"], pair["action"]): pair["count"] for pair in data["pairs"]}
        assert sum(pooled.values()) == result.calls
    dot = graph.to_dot()
    assert all(f"\\nstage {stage}\\n" in dot for stage in range(4))
    _assert_graphviz(dot)


def test_vector_states_and_the_end_of_an_episode() -> None:
    model = in_the_plane(ending(2, 0.8, 1))
    result, graph = _search(OTGapE(sp.LogSumExp(0.5), epsilon=0.01), model, None, max_calls=3_000)
    data = json.loads(graph.to_json())
    assert data["states"][0]["state"] == [0.0, 0.0]
    assert all(state["state"][1] == state["state"][0] % 2 for state in data["states"])
    assert sum(pair["count"] for pair in data["pairs"]) == result.calls
    ends = [seen for pair in data["pairs"] for seen in pair["successors"] if seen["state"] == "end"]
    assert ends
    dot = graph.to_dot()
    assert "[1.0, 1.0]" in dot
    assert re.search(r"-> end \[", dot)
    _assert_graphviz(dot)


def test_hostile_names_are_escaped() -> None:
    model = _named([HOSTILE, "the other\nstate"], [HOSTILE, "a" * 500])
    _, graph = _search(OTGapE(sp.LogSumExp(0.5), epsilon=0.01), model, 0, max_calls=500)
    data = json.loads(graph.to_json())
    assert data["states"][0]["name"] == data["pairs"][0]["name"] == HOSTILE
    dot = graph.to_dot()
    _assert_graphviz(dot)
    assert "the other state" in dot
    assert "\x1b" not in dot
    assert "a" * 40 in dot
    assert "a" * 41 not in dot


@pytest.mark.parametrize("limit", [1, 7, 60])
def test_the_rest_is_left_out_and_counted(limit: int) -> None:
    model = sp.models.garnet(states=200, actions=15, branching=4, discount=0.9, seed=1)
    _, graph = _search(OTGapE(sp.LogSumExp(0.5), epsilon=0.01), model, 0, max_calls=5_000)
    reached = len(json.loads(graph.to_json())["states"])
    assert reached > 60
    dot = graph.to_dot(limit)
    assert f"the {limit} nearest nodes; {reached - limit} more" in dot
    assert len(re.findall(r"^  s\d+ \[", dot, re.MULTILINE)) == limit
    assert re.search(r"-> others \[", dot)
    _assert_graphviz(dot)
    with pytest.raises(ValueError, match="limit must be"):
        graph.to_dot(0)


def test_a_snapshot_stays_as_it_is() -> None:
    explorer = begun(MDPGapE(epsilon=0.1), sp.models.river_swim())
    graph = explored(explorer, 0.0)
    assert repr(graph) == "Explored(1 states, 0 pairs, 0 calls)"
    for array in explorer.graph:
        array[...] = 1
    assert not graph.graph.pairs["count"].any()
    assert not graph.graph.hits.any()
    with pytest.raises(ValueError, match="read-only"):
        graph.graph.hits[0] = 0
