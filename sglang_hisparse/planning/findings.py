"""What keeps a plan from working, and what to know about it."""

from __future__ import annotations

import math

from sglang_hisparse.capacity import Capacity, ceil_pages
from sglang_hisparse.planning.inputs import RAM_SHARE, Inputs


def findings_of(
    inputs: Inputs, tiered: int, longest: int, host_total: float, capacity: Capacity | None
) -> list[str]:
    found: list[str] = []
    if capacity and not tiered:
        if not inputs.model.prefill_reads_host and ceil_pages(inputs.context) > capacity.device_pages:
            found.append(
                f"no request of --context {inputs.context} runs: its prompt has to fit the device pool, and the "
                f"longest that does has {longest} tokens. Lower --context, raise --tp or --mem-fraction"
            )
        else:
            found.append(
                f"no request of --context {inputs.context} runs: the pools hold {capacity.logical_tokens} tokens "
                "together. More --host-pool-gib, less context, or a higher --tp"
            )
    if memory_is_known(inputs):
        found += _too_much_memory(inputs, host_total)
    return found


def memory_is_known(inputs: Inputs) -> bool:
    """Whether the host's memory is given, and not just what is usual."""
    return inputs.host_ram_gib is not None or inputs.gpu.ram_is_fixed


def _too_much_memory(inputs: Inputs, host_total: float) -> list[str]:
    ranks, ram = inputs.gpus_total, inputs.host_ram_total
    if host_total <= ram * RAM_SHARE:
        return []
    known = "" if memory_is_known(inputs) else " that a host of these GPUs usually has (--host-ram-gib)"
    return [
        f"--host-pool-gib {host_total / ranks:g} on {ranks} ranks takes {host_total:g} GiB, more than {RAM_SHARE:.0%} "
        f"of the {ram:g} GiB of host memory{known}: up to {math.floor(inputs.most_pool_gib)} works"
    ]


def notes_of(
    inputs: Inputs, resident: int, tiered: int, smallest: tuple[float, int], host_total: float
) -> list[str]:
    model, notes = inputs.model, []
    if not memory_is_known(inputs):
        notes += _too_much_memory(inputs, host_total)
    if model.not_served:
        notes.append(f"planned only: not served yet ({model.not_served})")
    if inputs.context > model.most_context:
        notes.append(
            f"{model.name} takes up to {model.most_context} positions; --context is {inputs.context}"
        )
    if not smallest[0] and resident:
        notes.append("the tier lets no further request run here: HBM decides, or request slots do")
    elif inputs.host_pool_gib is None and smallest[0] > inputs.most_pool_gib:
        usual = "" if memory_is_known(inputs) else " (usual for these GPUs: --host-ram-gib)"
        notes.append(
            f"{inputs.host_ram_total:g} GiB of host memory{usual} keep the pool under the {smallest[0]:g} GiB a rank "
            "with which the most requests run"
        )
    elif tiered < resident:
        notes.append(
            f"this host pool costs more requests than it gives; the smallest of use has {smallest[0]:g} GiB"
        )
    return notes
