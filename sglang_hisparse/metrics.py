"""The tier's Prometheus series, as data: what the server publishes, the docs list and the dashboard draws.

Names follow SGLang's: prefix `sglang:`, counters end in `_total`, units are in the name. Every series carries the
labels of SGLang's own scheduler series (model_name, engine_type, tp_rank, pp_rank, moe_ep_rank, dp_rank where there
is one); `label` is ours beside them. Numbers are those of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_hisparse.policy.admission import DEFERRALS

COUNTER, GAUGE = "counter", "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `values` of `label` exist from the start, at zero; others appear when they occur."""

    name: str
    kind: str
    text: str
    label: str = ""
    values: tuple[str, ...] = ()


# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric("sglang:hisparse_selected_rows_total", COUNTER,
           "KV rows that sparse attention selected in decode, by where they were: resident (HBM), hot (cached in a hot "
           "row) or missed (fetched from the host). Once an index group.",
           "outcome", ("resident", "hot", "missed")),
    Metric("sglang:hisparse_selection_overflow_total", COUNTER,
           "Selected rows that found no hot row. Must stay 0: such a row is not attended to."),
    Metric("sglang:hisparse_device_to_host_bytes_total", COUNTER,
           "Bytes of KV copied to the host by cleaning and spilling."),
    Metric("sglang:hisparse_host_to_device_bytes_total", COUNTER,
           "Bytes of KV copied to the device: restore (whole pages) or miss (rows; missed rows times their bytes).",
           "cause", ("restore", "miss")),
    Metric("sglang:hisparse_pages_cleaned_total", COUNTER,
           "Pages copied to the host, ahead of need or because they were spilled."),
    Metric("sglang:hisparse_pages_spilled_total", COUNTER,
           "Pages that gave their device page up."),
    Metric("sglang:hisparse_pages_restored_total", COUNTER,
           "Spilled pages brought back to the device."),
    Metric("sglang:hisparse_admissions_deferred_total", COUNTER,
           "Times a scheduling pass left a waiting request waiting, by reason. Counts passes, not requests.",
           "reason", tuple(DEFERRALS)),
    Metric("sglang:hisparse_copy_stall_seconds_total", COUNTER,
           "Seconds that forwards waited for page copies: on CUDA by events on the forward stream, on the CPU the "
           "copies themselves. Without the gathers of missed rows, which are part of the resolve kernel."),
    Metric("sglang:hisparse_audited_pages_total", COUNTER,
           "Host pages whose bytes were compared with what was written (option audit)."),
    Metric("sglang:hisparse_pages", GAUGE,
           "Pages by state: resident (only in HBM), clean (in HBM and on the host), spilled (only on the host), hot "
           "(device pages leased for hot rows), free (device pages).",
           "state", ("resident", "clean", "spilled", "hot", "free")),
    Metric("sglang:hisparse_hot_rows", GAUGE,
           "Device rows leased to requests as hot rows."),
    Metric("sglang:hisparse_spilled_requests", GAUGE,
           "Requests that hold KV and have spilled pages."),
    Metric("sglang:hisparse_device_usage", GAUGE,
           "Share of device pages in use, hot rows included. 1 means 100 percent."),
    Metric("sglang:hisparse_host_usage", GAUGE,
           "Share of host pages that hold the only copy of a page. 1 means 100 percent; clean pages count as free."),
    Metric("sglang:hisparse_host_total_pages", GAUGE,
           "Pages of the host pool."),
)
# fmt: on
