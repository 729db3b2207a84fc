"""Plan with a simulator: which action now, and how sure, with certificates where they can be had.

Everything a user needs is in this namespace: backups (`HardMax`, `LogSumExp`, `OptimalTransport`, `Tsallis`), models
(`TabularModel`, `VectorModel`, `JitModel`, `models`), planners of values (`DebiasedCruiser`, `SparseSampling`,
`SmoothCruiser`, `SecondOrderSmoothCruiser`) and of actions (`OTGapE`, `MDPGapE`, `OTGapCruiser`), one for long horizons
(`ReferenceCruiser`, around `references`), baselines (`UCT`, `RandomizedMultilevel`), with `forecast` and `plan`;
`decide` and `Agent` for actions on any simulator; `plan_unregularised` for ordinary values and `act` for episodes of a
Gymnasium environment; the exact solver (`exact`) and the theory (`curvature`).
"""

from importlib.metadata import version

from smoothplan import backups, curvature, exact, models, references
from smoothplan.acting import ActResult, act
from smoothplan.agent import Agent, Episode
from smoothplan.backups import HardMax, LogSumExp, OptimalTransport, Tsallis
from smoothplan.checking import check_model
from smoothplan.checks import BackupError, BackupReport, check_backup
from smoothplan.compare import Comparison, compare
from smoothplan.decide import Decision, decide
from smoothplan.forecast import Forecast, forecast
from smoothplan.models import (
    GenerativeModel,
    JitModel,
    ModelError,
    Oracle,
    SimulatorError,
    TabularModel,
    Transition,
    VectorModel,
    reproduce,
)
from smoothplan.plan import PlanResult, plan
from smoothplan.planners import (
    UCT,
    DebiasedCruiser,
    MDPGapE,
    OTGapCruiser,
    OTGapE,
    RandomizedMultilevel,
    ReferenceCruiser,
    SecondOrderSmoothCruiser,
    SmoothCruiser,
    SparseSampling,
)
from smoothplan.references import CriticReference, FittedReference, GridReference, SharedReference, TabularReference
from smoothplan.running.checkpoint import CheckpointError
from smoothplan.running.run import HopelessError
from smoothplan.running.workers import ClusterError
from smoothplan.unregularised import UnregularisedResult, plan_unregularised

__version__ = version("smoothplan")

__all__ = [
    "UCT",
    "ActResult",
    "Agent",
    "BackupError",
    "BackupReport",
    "CheckpointError",
    "ClusterError",
    "Comparison",
    "CriticReference",
    "DebiasedCruiser",
    "Decision",
    "Episode",
    "FittedReference",
    "Forecast",
    "GenerativeModel",
    "GridReference",
    "HardMax",
    "HopelessError",
    "JitModel",
    "LogSumExp",
    "MDPGapE",
    "ModelError",
    "OTGapCruiser",
    "OTGapE",
    "OptimalTransport",
    "Oracle",
    "PlanResult",
    "RandomizedMultilevel",
    "ReferenceCruiser",
    "SecondOrderSmoothCruiser",
    "SharedReference",
    "SimulatorError",
    "SmoothCruiser",
    "SparseSampling",
    "TabularModel",
    "TabularReference",
    "Transition",
    "Tsallis",
    "UnregularisedResult",
    "VectorModel",
    "act",
    "backups",
    "check_backup",
    "check_model",
    "compare",
    "curvature",
    "decide",
    "exact",
    "forecast",
    "models",
    "plan",
    "plan_unregularised",
    "references",
    "reproduce",
]
