"""What a search has explored: numbers for programs, pictures for people."""

import json
import re
import shutil
import subprocess
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import smoothplan as sp
from smoothplan import drawing
from smoothplan.planners.gape import MDPGapE, OTGapE
from smoothplan.search.explored import Explored, Node, explored
from tests.common import begun, ending, identified, in_the_plane

SVG = "{http://www.w3.org/2000/svg}"
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
    first, *lines = text.splitlines()
    assert first.startswith("// ")
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


def _texts(svg: str) -> str:
    return " ".join(ET.fromstring(svg).itertext())


def test_json_agrees_with_the_result() -> None:
    result, graph = _river()
    report = identified(result)
    assert report is not None
    data = json.loads(graph.to_json())
    assert "graph" not in json.loads(result.to_json())["details"]
    assert data["gap"] == report.gap
    assert data["calls"] == result.calls
    assert result.q_intervals is not None
    assert data["q_intervals"] == result.q_intervals.tolist()
    assert len(data["states"]) == data["states_discovered"] == report.states
    assert len(data["pairs"]) == data["pairs_sampled"] == report.pairs
    assert tuple(data["states"][0]["interval"]) == result.interval
    assert data["states"][0]["name"] == "place 0"
    assert sum(pair["count"] for pair in data["pairs"]) == result.calls
    assert sum(pair["count"] for pair in data["pairs"] if pair["state"] == 0) == result.samples
    for pair in data["pairs"]:
        if pair["state"] == 0:
            assert pair["q"] == result.q_intervals[pair["action"]].tolist()
        assert pair["name"] == ("left", "right")[pair["action"]]
        assert sum(seen["count"] for seen in pair["successors"]) == pair["count"]
        assert sum(seen["share"] for seen in pair["successors"]) == pytest.approx(1.0)


@pytest.mark.parametrize("sampling", ["focused", "trajectories"])
@pytest.mark.parametrize("engine", ["compiled", "batched"])
def test_depths_are_the_fewest_steps(sampling: Any, engine: Any) -> None:
    model = sp.models.garnet(states=60, actions=3, branching=3, discount=0.8, seed=3)
    planner = OTGapE(sp.LogSumExp(0.5), epsilon=0.01, sampling=sampling)
    _, graph = _search(planner, model, 7, max_calls=500, engine=engine)
    data = json.loads(graph.to_json())
    assert data["states"][0]["state"] == 7
    assert "stage" not in data["states"][0]
    assert "name" not in data["pairs"][0]
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
    assert tuple(nodes[0, 0]["interval"]) == result.interval
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
    svg = drawing.to_svg(graph)
    assert {f"stage {stage}" for stage in range(4)} <= {text.text for text in ET.fromstring(svg).iter(f"{SVG}text")}
    _assert_graphviz(drawing.to_dot(graph))


def test_only_the_root() -> None:
    result, graph = _river(calls=0)
    data = json.loads(graph.to_json())
    (root,) = data["states"]
    assert (root["number"], root["depth"], tuple(root["interval"])) == (0, 0, result.interval)
    assert data["pairs"] == []
    label = ET.fromstring(drawing.to_svg(graph)).attrib["aria-label"]
    assert label.endswith("1 state and 0 pairs discovered in 0 calls; all shown")
    _assert_graphviz(drawing.to_dot(graph))
    assert graph.reached_most(5) == [Node(0, 0)]


def test_vector_states_and_the_end_of_an_episode() -> None:
    model = in_the_plane(ending(2, 0.8, 1))
    result, graph = _search(OTGapE(sp.LogSumExp(0.5), epsilon=0.01), model, None, max_calls=3_000)
    data = json.loads(graph.to_json())
    assert data["states"][0]["state"] == [0.0, 0.0]
    assert all(state["state"][1] == state["state"][0] % 2 for state in data["states"])
    assert sum(pair["count"] for pair in data["pairs"]) == result.calls
    ends = [seen for pair in data["pairs"] for seen in pair["successors"] if seen["state"] == "end"]
    assert ends
    svg, dot = drawing.to_svg(graph), drawing.to_dot(graph, limit=1000)
    assert "(1, 1)" in _texts(svg)
    assert re.search(r"×\d+, end \d+%", _texts(svg))
    assert re.search(r"-> end \[", dot)
    _assert_graphviz(dot)
    _assert_graphviz(drawing.to_dot(graph))


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    model = _named([HOSTILE, "the other\nstate"], [HOSTILE, "a" * 500])
    _, graph = _search(OTGapE(sp.LogSumExp(0.5), epsilon=0.01, rewards="bounded"), model, 0, max_calls=500)
    data = json.loads(graph.to_json())
    assert data["states"][0]["name"] == data["pairs"][0]["name"] == HOSTILE
    svg, dot = drawing.to_svg(graph), drawing.to_dot(graph)
    root = ET.fromstring(svg)
    shown = """<b a='1'>&amp;"]]>\\N \\" {x} // \ufffd\ufffd[31m \ufffd -> é"""
    assert shown in root.attrib["aria-label"]
    assert shown in _texts(svg)
    assert not list(root.iter(f"{SVG}b"))
    assert "a…" in _texts(svg)
    _assert_graphviz(dot)
    assert "\x1b" not in dot + svg
    drawing.save(graph, tmp_path / "graph.json")
    assert json.loads((tmp_path / "graph.json").read_text("utf-8")) == data


def test_the_drawing_says_what_it_shows() -> None:
    result, graph = _river()
    root = ET.fromstring(drawing.to_svg(graph))
    gap = f"Root place 0: gap {graph.gap:.4g}; 6 states and 12 pairs discovered in 5,000 calls"
    assert root.attrib["aria-label"].startswith(gap)
    low, high = result.interval
    assert any(f"[{low!r}, {high!r}]" in (title.text or "") for title in root.iter(f"{SVG}title"))


@pytest.mark.parametrize("limit", [1, 7, 60])
def test_the_rest_is_left_out_and_counted(limit: int) -> None:
    model = sp.models.garnet(states=200, actions=15, branching=4, discount=0.9, seed=1)
    _, graph = _search(OTGapE(sp.LogSumExp(0.5), epsilon=0.01), model, 0, max_calls=5_000)
    reached = int((graph.depths >= 0).sum())
    assert reached > 60
    nodes = graph.reached_most(limit)
    assert nodes == graph.reached_most(reached)[:limit]
    known = {nodes[0]}
    for node in nodes[1:]:
        assert any(number == node.number for seen in known for p in graph.pairs(seen) for number, _ in p.successors)
        known.add(node)
    title = f"the {limit} of {reached} that are reached most are shown, {reached - limit} are not"
    svg, dot = drawing.to_svg(graph, limit), drawing.to_dot(graph, limit)
    assert title in ET.fromstring(svg).attrib["aria-label"]
    assert title in dot.splitlines()[0]
    assert len(re.findall(r"^  s\d+ \[", dot, re.MULTILINE)) == limit
    assert len(re.findall(r">[^<]*: value \[", svg)) == 2 * limit  # a tooltip for a name and one for a bar
    assert re.search(r"\d+ others", _texts(svg))
    _assert_graphviz(dot)


def test_text_does_not_overlap() -> None:
    """By the widths of a wide font; tooltips are no text."""
    model = sp.models.garnet(states=80, actions=5, branching=4, discount=0.8, seed=2)
    _, graph = _search(MDPGapE(epsilon=0.01), model, 0, max_calls=8_000)
    root = ET.fromstring(drawing.to_svg(graph))
    boxes = []
    for text in root.iter(f"{SVG}text"):
        width = (7.7 if text.attrib["class"] == "name" else 6.8) * len(text.text or "")
        left = float(text.attrib["x"]) - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.attrib["text-anchor"]] * width
        boxes.append((left, left + width, float(text.attrib["y"])))
    assert all(0.0 <= left < right <= float(root.attrib["width"]) for left, right, _ in boxes)
    for (left, right, y), (other_left, other_right, other_y) in combinations(boxes, 2):
        assert abs(y - other_y) >= 10.0 or right <= other_left or other_right <= left


def test_save_chooses_by_suffix(tmp_path: Path) -> None:
    _, graph = _river(calls=200)
    assert repr(graph) == "Explored(5 states, 9 pairs, 200 calls)"
    for suffix, text in {
        ".json": graph.to_json(),
        ".dot": drawing.to_dot(graph),
        ".SVG": drawing.to_svg(graph),
    }.items():
        drawing.save(graph, str(tmp_path / f"river{suffix}"))
        assert (tmp_path / f"river{suffix}").read_text("utf-8") == text + "\n"
    with pytest.raises(ValueError, match=r"path must end in \.json, \.dot or \.svg, got .*river\.png'"):
        drawing.save(graph, tmp_path / "river.png")
    with pytest.raises(ValueError, match="limit must be"):
        drawing.to_svg(graph, limit=0)
    assert {path.name for path in tmp_path.iterdir()} == {"river.json", "river.dot", "river.SVG"}


def test_a_snapshot_stays_as_it_is() -> None:
    model = sp.models.river_swim()
    explorer = begun(MDPGapE(epsilon=0.1), model)
    graph = explored(explorer, model)
    for array in explorer.graph:
        array[...] = 1
    assert not graph.counts.any()
    assert not graph.hits.any()
    with pytest.raises(ValueError, match="read-only"):
        graph.counts[0] = 0
