"""The checkers, one promise each. Their docstrings are the promises; `base.py` says what a checker is."""

from .base import Checker, Violation
from .bundles import AllOrNothing
from .delays import NobodyInDelay
from .elections import OneLeader
from .exclusion import MutualExclusion
from .fences import GrowingFences
from .grants import SingleGrants
from .leftovers import NothingLeft
from .losses import LossTold
from .order import FairOrder
from .outcomes import ExactOutcomes
from .periods import OncePerPeriod
from .progress import SteadyProgress
from .promptness import PromptGrants
from .register import FencedWrites
from .renewals import TrueRenewals
from .requests import RequestsHeard
from .waiters import DeadWaitersLeave
from .waiting import BoundedWaiting

# The first is the one to look at first when several are broken.
CHECKERS: tuple[type[Checker], ...] = (
    MutualExclusion,
    OncePerPeriod,
    NobodyInDelay,
    OneLeader,
    GrowingFences,
    FencedWrites,
    SingleGrants,
    AllOrNothing,
    LossTold,
    TrueRenewals,
    ExactOutcomes,
    RequestsHeard,
    FairOrder,
    BoundedWaiting,
    DeadWaitersLeave,
    PromptGrants,
    SteadyProgress,
    NothingLeft,
)

__all__ = [
    "CHECKERS",
    "AllOrNothing",
    "BoundedWaiting",
    "Checker",
    "DeadWaitersLeave",
    "ExactOutcomes",
    "FairOrder",
    "FencedWrites",
    "GrowingFences",
    "LossTold",
    "MutualExclusion",
    "NobodyInDelay",
    "NothingLeft",
    "OncePerPeriod",
    "OneLeader",
    "PromptGrants",
    "RequestsHeard",
    "SingleGrants",
    "SteadyProgress",
    "TrueRenewals",
    "Violation",
]
