"""Which page lives where, and when that changes. Plain Python: the same decisions on every rank."""

from sglang_hisparse.policy.journal import CopyBatch, Journal
from sglang_hisparse.policy.planner import Planner, PlannerOptions
from sglang_hisparse.policy.requests import Lease, Request
from sglang_hisparse.policy.residency import Residency, State

__all__ = ["CopyBatch", "Journal", "Lease", "Planner", "PlannerOptions", "Request", "Residency", "State"]
