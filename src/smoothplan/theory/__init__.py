"""The paper's formulas: backups, transport, curvature, the exact solver."""
