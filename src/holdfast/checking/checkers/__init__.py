"""The checkers, one promise each. Their docstrings are the promises; `base.py` says what a checker is."""

from .base import Checker, Violation
from .exclusion import MutualExclusion
from .fences import GrowingFences
from .grants import SingleGrants
from .leftovers import NothingLeft
from .losses import LossTold
from .order import FairOrder
from .outcomes import ExactOutcomes
from .progress import SteadyProgress
from .register import FencedWrites
from .renewals import TrueRenewals
from .waiting import BoundedWaiting

# The first is the one to look at first when several are broken.
CHECKERS: tuple[type[Checker], ...] = (
    MutualExclusion,
    GrowingFences,
    FencedWrites,
    SingleGrants,
    LossTold,
    TrueRenewals,
    ExactOutcomes,
    FairOrder,
    BoundedWaiting,
    SteadyProgress,
    NothingLeft,
)

__all__ = [
    "CHECKERS",
    "BoundedWaiting",
    "Checker",
    "ExactOutcomes",
    "FairOrder",
    "FencedWrites",
    "GrowingFences",
    "LossTold",
    "MutualExclusion",
    "NothingLeft",
    "SingleGrants",
    "SteadyProgress",
    "TrueRenewals",
    "Violation",
]
