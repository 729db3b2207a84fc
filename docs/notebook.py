"""The notebook of the documentation: its cells, what executes them, and the page that they become.

`python docs/notebook.py` executes the cells and writes docs/notebook.ipynb with their outputs. A test compares that
file with a fresh execution. The documentation site shows it as notebook.html: MkDocs calls the hooks.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".ipynb")

CELLS = [
    """# Results at a glance

A notebook shows forecasts, plans, decisions and comparisons as text. `figure()` draws all but forecasts with
[Plotly](https://plotly.com/python/): install `smoothplan[plots]`.""",
    """## The price

A forecast makes no simulator call.""",
    """import smoothplan as sp

model = sp.models.garnet(states=50, actions=3, branching=4, discount=0.2, seed=1, reward_kind="bernoulli")
planner = sp.DebiasedCruiser(sp.LogSumExp(0.5), epsilon=0.05, delta=0.1)
forecast = sp.forecast(planner, model)
forecast""",
    """## A value

The interval holds with the probability asked for.""",
    "sp.plan(planner, model, state=0, seed=0)",
    """## The best action

A planner by bounds proves an interval for each action.""",
    """river = sp.models.river_swim(discount=0.7)
best = sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.1, delta=0.1), river, state=0, seed=0)
best""",
    "best.figure()",
    """## Planners side by side

`compare` runs planners with budgets and seeds, and returns one row for each run.""",
    """contestants = {
    "debiased": planner,
    "sparse sampling": sp.SparseSampling(planner.backup, epsilon=0.05, delta=0.1),
    "by bounds": sp.OTGapE(planner.backup, epsilon=0.01, delta=0.1),
}
comparison = sp.compare(contestants, model, state=0, calls=[300, 1_000, 3_000], seeds=5)
comparison""",
    "comparison.figure()",
]

DECISION = [
    """## A decision

`decide` answers the question of an engineer with a simulator: which action now, and how sure.""",
    """decision = sp.decide(river, 0, calls=20_000, seed=0)
decision""",
    "decision.figure()",
]


def built() -> Any:
    """The notebook without outputs."""
    import nbformat

    import smoothplan

    decision = DECISION if callable(getattr(smoothplan, "decide", None)) else []
    cells = []
    for number, text in enumerate([*CELLS, *decision]):
        new: Any = nbformat.v4.new_markdown_cell if text.startswith("#") else nbformat.v4.new_code_cell
        cells.append(new(text, id=f"cell-{number}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def executed() -> Any:
    """The notebook with the outputs of a fresh execution; figures as data, without Plotly's own code."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = built()
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    NotebookClient(notebook, timeout=300, config=Config(KernelManager={"transport": "ipc"})).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # times of execution
    return notebook


def outputs(notebook: Any) -> list[str]:
    """What the cells of a notebook show, without what differs from one execution to the next: times."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = [output.get("text") or json.dumps(output.get("data"), sort_keys=True) for output in shown]
    return [re.sub(r"\d+\.\d+ s\b", "… s", text) for text in texts]


def page(notebook: Any, theme: str = "light") -> str:
    """The notebook as one HTML page that needs nothing from elsewhere."""
    import nbformat
    import plotly.io
    from nbconvert import HTMLExporter
    from plotly.offline import get_plotlyjs

    shown = nbformat.from_dict(notebook)
    kind = "application/vnd.plotly.v1+json"
    for output in (
        output for cell in shown.cells for output in cell.get("outputs", []) if kind in output.get("data", {})
    ):
        drawn = {name: value for name, value in output["data"][kind].items() if name != "config"}
        figure = plotly.io.to_html(drawn, include_plotlyjs=False, full_html=False, validate=False)
        output["data"] = {"text/html": figure}
    exporter = HTMLExporter(theme=theme, mathjax_url="", require_js_url="", jquery_url="", mermaid_js_url="")
    body, _ = exporter.from_notebook_node(shown, {"metadata": {"name": "smoothplan: results at a glance"}})
    return str(body).replace("</head>", f"<script>{get_plotlyjs()}</script>\n</head>", 1)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A hook of MkDocs: links to the notebook, which a reader of the sources can open, lead to its page."""
    return markdown.replace("](notebook.ipynb)", "](notebook.html)")


def on_files(files: Any, config: Any) -> Any:
    """A hook of MkDocs: adds the page to the site."""
    import nbformat
    from mkdocs.structure.files import File

    content = page(nbformat.read(FILE, as_version=4))
    files.append(File.generated(config, "notebook.html", content=content))
    return files


if __name__ == "__main__":
    import nbformat

    nbformat.write(executed(), FILE)
