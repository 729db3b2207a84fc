"""Findings that no experiment made: every look, texts that are markup, numbers that a logarithmic axis cannot show."""

import math
from dataclasses import replace
from pathlib import Path

from smoothplan.findings import Axis, Claim, Evidence, Figure, Findings, Series, Table

EVIL = "</script><script>window.injected = 1</script><img src=x onerror='window.injected = 1'> & <b>bold</b>"

ROWS = '{"seed": 0, "result": {"name": "ε < 1"}}\n{"seed": 1, "result": {"name": "</a>"}}\n'

X = [1.0, 10.0, 100.0, 1000.0]

FIGURES = [
    Figure(
        "looks",
        "Calls against 1/ε",
        "Points lie along the dashed line.",
        Axis("1/ε", log=True),
        Axis("simulator calls", log=True),
        [
            Series("measured", X, [2.0, 210.0, 1.9e4, 2e6], [1.0, 100.0, 1e4, 1e6], [3.0, 300.0, 3e4, 3e6]),
            Series("theory, slope 2", X, [2.0, 200.0, 2e4, 2e6], look="dashed"),
            Series("forecast", X, [9.0, 300.0, 9e4, 3e6], look="line"),
        ],
    ),
    Figure(
        "names",
        "Calls by planner",
        "Ours is lower.",
        Axis("planner"),
        Axis("calls"),
        [
            Series("published", ["a planner with a name that takes up a lot of room", "B"], [3.0, 5.0], look="bars"),
            Series(
                "ours", ["a planner with a name that takes up a lot of room", "B"], [1, 2], [0.5, 1], [2, 3], "bars"
            ),
        ],
    ),
    Figure(
        "signs",
        f"Not positive {EVIL}",
        f"A log axis cannot show all of it. {EVIL}",
        Axis("depth"),
        Axis(f"error {EVIL}", log=True),
        [
            Series(EVIL, [0, 1, 2, 3], [1.0, 0.0, -2.0, 0.5], [0.5, -0.5, -3.0, -0.5], [1.5, 0.5, -1.0, 1.5]),
            Series("short " + "a-name-without-any-space-at-all" * 5, [0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0]),
        ],
    ),
]

CLAIMS = [
    Claim("The order is 2.", "slope", "2", 1.98, 0.03, (1.9, 2.1), "log factors"),
    Claim("A bound is kept.", "ratio", "at most 1", 1.25, None, (-math.inf, 1.0), "it is a bound"),
    Claim("A bound is kept.", "another ratio", "at most 1", 1, 0.0, (-math.inf, 1.0), "it is a bound"),
    Claim(f"Savings. {EVIL}", f"ratio {EVIL}", f"large {EVIL}", 1e13, None, (1e10, math.inf), f"why {EVIL}"),
]

FULL = Findings(
    experiment="exponents",
    title="Exponents",
    question="How does the price grow?",
    command="smoothplan experiment exponents --quick --out DIR",
    scale="quick",
    settings={"epsilons": [0.1, 0.05], "text": EVIL},
    version="0.1.0+0123abcd",
    machine={"python": "3.11.7", "numpy": "2.0.0"},
    rows=2,
    seconds=75.0,
    evidence=Evidence(
        CLAIMS,
        FIGURES,
        [Table("wide", "A wide table", [f"column {i}" for i in range(15)], [[EVIL, *(10.0**i for i in range(14))]])],
        ["Points are means.", EVIL],
    ),
)

BARE = replace(FULL, experiment="bare <i>", title=f"Nothing {EVIL}", evidence=Evidence(), settings={}, rows=0)


def put(folder: Path, name: str, findings: Findings, rows: str = ROWS) -> Path:
    """Writes what an experiment would; its figures are there already, so that nobody waits for Matplotlib."""
    (folder / name).mkdir(parents=True)
    (folder / name / "findings.json").write_text(findings.to_json(), encoding="utf-8")
    (folder / name / "rows.jsonl").write_bytes(rows.encode())
    for figure in findings.evidence.figures:
        for kind in ("svg", "png"):
            (folder / name / f"{figure.name}.{kind}").touch()
    return folder
