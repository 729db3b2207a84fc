"""Results as text, HTML and figures: `summary`, `table`, `html` and `figure`, each for every kind of record.

Records import this package on their first use of it, see `smoothplan.base.records`.
"""

from smoothplan.report.figures import figure
from smoothplan.report.text import html, summary, table

__all__ = ["figure", "html", "summary", "table"]
