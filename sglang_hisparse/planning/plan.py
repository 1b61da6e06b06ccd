"""The plan: how many requests run, what binds, what moves over the link, what to launch.

The split of memory is `capacity.size_pools`, the server's own. What a server measures is estimated here:

    KV budget   (GPU memory - 2 GiB for CUDA and NCCL) x mem_fraction - weights - recurrent state of all slots
                as SGLang's _profile_available_bytes, with memory before the model loads taken as all but 2 GiB
    traffic     traffic.py
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sglang_hisparse.capacity import BINDING, GIB, Capacity, TokenBytes, ceil_pages, hot_pages, size_pools
from sglang_hisparse.config import OPEN_PAGES, PAGE
from sglang_hisparse.planning.findings import findings_of, notes_of
from sglang_hisparse.planning.footprint import token_bytes, weights_of_gpu
from sglang_hisparse.planning.host_pool import smallest_pool
from sglang_hisparse.planning.inputs import Inputs
from sglang_hisparse.planning.traffic import Traffic, traffic_of

RUNTIME_GIB = 2.0
"""CUDA context, NCCL and the like: taken before SGLang measures memory. An estimate."""

LIMITS = {**BINDING, "link": "the link to host memory (--tpot-ms, --miss-rate)"}
"""What can bind, with the options that move it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. GiB and requests of one DP replica (of one of its GPUs where memory is meant), `_total` of all.

    capacity         what the server would put into /server_info
    min_host_pool_gib  the smallest host pool that lets the most requests run; 0 where the tier has nothing to give
    most_requests    how many run with it
    gpu_gib          memory of one GPU by use; host_gib: of one rank's host pool
    request_gib      one request: resident; tiered: HBM at the least, and host
    findings         what keeps this from working; notes: what to know
    """

    inputs: Inputs
    token: TokenBytes
    state_bytes: int
    kv_gib: float
    weights_gib: float
    host_pool_gib: float
    host_pool_gib_total: float
    resident_requests: int
    tiered_requests: int
    min_host_pool_gib: float
    most_requests: int
    longest_prompt: int
    binding: str
    gpu_gib: dict[str, float]
    host_gib: dict[str, float]
    request_gib: dict[str, float]
    traffic: Traffic
    capacity: Capacity | None
    findings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def resident_requests_total(self) -> int:
        return self.resident_requests * self.inputs.dp

    @property
    def tiered_requests_total(self) -> int:
        return self.tiered_requests * self.inputs.dp

    @property
    def gain(self) -> float | None:
        """Requests with the tier for one without; None where none run without."""
        return self.tiered_requests / self.resident_requests if self.resident_requests else None

    def numbers(self) -> dict[str, Any]:
        """What the page computes too, and shows."""
        return {
            "bytes_per_token": asdict(self.token),
            "state_bytes": self.state_bytes,
            "kv_gib": self.kv_gib,
            "weights_gib": self.weights_gib,
            "host_pool_gib": self.host_pool_gib,
            "host_pool_gib_total": self.host_pool_gib_total,
            "resident_requests": self.resident_requests,
            "tiered_requests": self.tiered_requests,
            "resident_requests_total": self.resident_requests_total,
            "tiered_requests_total": self.tiered_requests_total,
            "gain": self.gain,
            "min_host_pool_gib": self.min_host_pool_gib,
            "most_requests": self.most_requests,
            "longest_prompt": self.longest_prompt,
            "binding": self.binding,
            "gpu_gib": self.gpu_gib,
            "host_gib": self.host_gib,
            "request_gib": self.request_gib,
            "traffic": asdict(self.traffic),
        }


def sizing_arguments(inputs: Inputs, token: TokenBytes) -> dict[str, Any]:
    """What `size_pools` is called with besides the two amounts of memory: as seams/sizing.py calls it."""
    model = inputs.model
    return {
        "most_device_tokens": None,
        "token": token,
        "groups": len(model.groups),
        "top_k": model.top_k,
        "hot_rows": inputs.hot_rows,
        "most_requests": inputs.max_running,
        "context_length": inputs.context,
        "chunk_tokens": inputs.gpu.chunk_tokens if model.prefill_reads_host else 0,
        "prefill_reads_host": model.prefill_reads_host,
        "pools": inputs.gpus_total,
    }


def make_plan(inputs: Inputs) -> Plan:
    """Plan `inputs`. ValueError that names --host-pool-gib for a pool too small to be of use; what else does not
    work is among the findings."""
    model, gpu, tp = inputs.model, inputs.gpu, inputs.attention_tp
    token = token_bytes(model, tp, inputs.kv_dtype)
    weights = weights_of_gpu(model, inputs.tp, tp) if inputs.weights_gib is None else inputs.weights_gib * GIB
    state = -(-model.state_bytes // tp)
    static = (gpu.memory_bytes - RUNTIME_GIB * GIB) * inputs.fraction
    budget = max(0, int(static - weights - inputs.max_running * state))

    sizing = sizing_arguments(inputs, token)

    def size(host_gib: float) -> Capacity | None:
        try:
            return size_pools(budget_bytes=budget, host_pool_gib=host_gib, **sizing)
        except ValueError:
            return None

    without = size(0.0)
    if without is None:
        finding = (
            f"the weights ({weights / GIB:.1f} GiB a GPU) and the state leave {budget / GIB:.2f} GiB of "
            f"{gpu.memory_bytes / GIB:.1f} for KV: a higher --tp, a larger GPU or --mem-fraction, or smaller weights"
        )
        return _plan(inputs, token, state, budget, weights, 0.0, (0.0, 0), None, None, [finding])
    smallest = smallest_pool(size, without, inputs.max_running)
    host_gib = inputs.host_pool_gib
    if host_gib is None:
        host_gib = _chosen_pool(inputs, smallest, size)
    findings: list[str] = []
    try:
        capacity = size_pools(budget_bytes=budget, host_pool_gib=host_gib, **sizing)
    except ValueError as error:
        if int(host_gib * GIB / (PAGE * token.host)) <= without.hot_min_pages:
            raise ValueError(f"--host-pool-gib {host_gib:g}: {error}") from None
        findings.append(str(error))
        host_gib, capacity = 0.0, without
    return _plan(inputs, token, state, budget, weights, host_gib, smallest, without, capacity, findings)


def _chosen_pool(inputs: Inputs, smallest: tuple[float, int], size: Any) -> float:
    """The smallest useful pool, in whole GiB where that changes nothing, within the host's memory."""
    exact, most = smallest
    limit = inputs.most_pool_gib
    if exact > limit:
        fits = math.floor(limit)
        capacity = size(float(fits))
        return float(fits) if capacity is not None and capacity.host_pages else 0.0
    whole = float(math.ceil(exact))
    capacity = size(whole)
    same = capacity is not None and min(inputs.max_running, capacity.tiered_requests) >= most
    return whole if same and whole <= limit else exact


def _plan(
    inputs: Inputs,
    token: TokenBytes,
    state: int,
    budget: int,
    weights: float,
    host_gib: float,
    smallest: tuple[float, int],
    without: Capacity | None,
    capacity: Capacity | None,
    findings: list[str],
) -> Plan:
    model, gpu, slots = inputs.model, inputs.gpu, inputs.max_running
    pages = max(1, ceil_pages(inputs.context))
    resident = min(slots, without.resident_requests) if without else 0
    tiered = min(slots, capacity.tiered_requests) if capacity else 0
    hot_min, _ = hot_pages(model.top_k, inputs.hot_rows)
    device, host = (capacity.device_pages, capacity.host_pages) if capacity else (0, 0)
    hot = hot_min * tiered if tiered * pages > device else 0
    in_hbm = min(tiered * pages, device - hot)
    spilled = tiered * pages - in_hbm
    traffic = traffic_of(inputs, token, spilled / (tiered * pages) if tiered else 0.0, tiered)
    binding = capacity.binding if capacity else "device_pool"
    if binding == "host_pool" and tiered >= smallest[1]:  # a larger one would take its index keys from HBM
        binding = "request_slots" if tiered == slots else "device_pool"
    if traffic.requests is not None and traffic.requests < tiered:
        binding = "link"
    page_gib, index_gib = PAGE * token.kv / GIB, PAGE * token.index / GIB
    logical = capacity.logical_pages if capacity else 0
    gpu_gib = {
        "outside": (gpu.memory_bytes - (gpu.memory_bytes - RUNTIME_GIB * GIB) * inputs.fraction) / GIB,
        "weights": weights / GIB,
        "state": slots * state / GIB,
        "tables": (capacity.table_bytes if capacity else 0) / GIB,
        "index": logical * index_gib,
        "kv": in_hbm * page_gib,
        "hot": hot * page_gib,
        "free": (device - in_hbm - hot) * page_gib,
    }
    host_page_gib = PAGE * token.host / GIB
    least = min(pages, hot_min + OPEN_PAGES + 1)
    longest = 0
    if capacity:
        longest = capacity.logical_tokens if model.prefill_reads_host else capacity.device_tokens
    total = host_gib * inputs.gpus_total
    findings = [*findings, *findings_of(inputs, tiered, longest, total, capacity)]
    return Plan(
        inputs=inputs,
        token=token,
        state_bytes=state,
        kv_gib=budget / GIB,
        weights_gib=weights / GIB,
        host_pool_gib=host_gib,
        host_pool_gib_total=total,
        resident_requests=resident,
        tiered_requests=tiered,
        min_host_pool_gib=smallest[0],
        most_requests=smallest[1],
        longest_prompt=longest,
        binding=binding,
        gpu_gib=gpu_gib,
        host_gib={"spilled": spilled * host_page_gib, "free": (host - spilled) * host_page_gib},
        request_gib={
            "resident": pages * (page_gib + index_gib) + state / GIB,
            "tiered": least * page_gib + pages * index_gib + state / GIB,
            "host": max(0, pages - OPEN_PAGES) * host_page_gib,
        },
        traffic=traffic,
        capacity=capacity,
        findings=tuple(findings),
        notes=tuple(notes_of(inputs, resident, tiered, smallest, total)),
    )
