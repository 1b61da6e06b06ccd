"""A plan as text for people and as one JSON object for scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sglang_hisparse import pin
from sglang_hisparse.planning.launch import hisparse_options, launch_command, launch_flags
from sglang_hisparse.planning.like_vllm import MODEL, LikeVllm
from sglang_hisparse.planning.plan import LIMITS, Plan

USES = {
    "outside": "outside",
    "weights": "weights",
    "state": "state",
    "tables": "tables",
    "index": "index keys",
    "kv": "KV",
    "hot": "hot rows",
    "free": "free",
}
"""Names of the parts of a GPU's memory. outside: what --mem-fraction-static leaves, and CUDA itself."""


def render(plan: Plan) -> str:
    """A short aligned text."""
    inputs, traffic, model = plan.inputs, plan.traffic, plan.inputs.model
    gpus = f"{inputs.gpus_total} x {inputs.gpu.name}" if inputs.gpus_total > 1 else inputs.gpu.name
    spread = f"tp {inputs.tp}" + (f", dp {inputs.dp}" if inputs.dp > 1 else "")
    spread += " with DP attention" if inputs.dp_attention else ""
    gain = f" ({plan.gain:.1f} x)" if plan.gain else ""
    total = f"; {plan.tiered_requests_total} on all {inputs.dp} replicas" if inputs.dp > 1 else ""
    memory = " + ".join(f"{USES[use]} {gib:.2f}" for use, gib in plan.gpu_gib.items() if gib >= 0.005)
    rows = [
        (
            "requests",
            f"{plan.resident_requests} without the tier, {plan.tiered_requests} with it{gain}{total}\n"
            f"limited by {LIMITS[plan.binding]}",
        ),
        (
            "host pool",
            f"{plan.host_pool_gib:g} GiB a rank, {plan.host_pool_gib_total:g} GiB of host memory in all\n"
            + (
                f"{plan.min_host_pool_gib:g} GiB a rank is the smallest that lets the most run, {plan.most_requests}"
                if plan.min_host_pool_gib
                else "no host pool lets more requests run"
            ),
        ),
        ("HBM, GiB", f"{inputs.gpu.memory_bytes / (1 << 30):.2f} = {memory}"),
        (
            "a token",
            f"{plan.token.kv:,.0f} B of KV and {plan.token.index:,.0f} B of index keys in HBM; "
            f"{plan.token.host:,.0f} B on the host",
        ),
        (
            "a request",
            f"{plan.request_gib['resident']:.2f} GiB resident; tiered {plan.request_gib['tiered']:.2f} GiB of HBM and "
            f"{plan.request_gib['host']:.2f} GiB of host memory"
            + (f"; {plan.state_bytes / (1 << 20):.0f} MiB of either is state" if plan.state_bytes else ""),
        ),
        ("a step", _step(plan)),
    ]
    if traffic.requests is not None:
        rows.append(
            ("link", f"{traffic.requests} requests at {inputs.tpot_ms:g} ms a token; {inputs.gpu.link}")
        )
    rows += [("note", note) for note in plan.notes]
    rows += [("FINDING", finding) for finding in plan.findings]
    if not plan.findings:
        rows.append(("once served" if model.not_served else "launch", launch_command(plan)))
    dtype = f"{inputs.kv_dtype} KV, top-k {model.top_k}, {len(model.groups)} index groups"
    return f"{model.name} on {gpus} ({spread}): {inputs.context} tokens a request, {dtype}\n\n" + _aligned(
        rows
    )


def _step(plan: Plan) -> str:
    traffic, inputs = plan.traffic, plan.inputs
    if not traffic.ms_step:
        return "all tokens are in HBM: nothing moves"
    verdict = "fits" if traffic.fits else "does not fit"
    return (
        f"{traffic.spilled_share:.0%} of the tokens are on the host, {inputs.miss_rate:.1%} of these selected miss\n"
        f"{traffic.gib_step:.2f} GiB = {traffic.ms_step:.1f} ms of the link at {traffic.link_gbps:.1f} GB/s, "
        f"{verdict} into {inputs.tpot_ms:g} ms a token"
    )


def _aligned(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        f"  {name if not i else '':{width}}  {line}"
        for name, text in rows
        for i, line in enumerate(text.split("\n"))
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """One object: options, numbers, launch flags. Numbers are of one DP replica unless the key ends in _total."""
    inputs = plan.inputs
    return {
        "sglang_hisparse": pin.PACKAGE,
        "model": inputs.model.name,
        "family": inputs.model.family,
        "served": not inputs.model.not_served,
        "gpu": inputs.gpu.name,
        "gpus_total": inputs.gpus_total,
        "tp": inputs.tp,
        "dp": inputs.dp,
        "dp_attention": inputs.dp_attention,
        "context": inputs.context,
        "kv_dtype": inputs.kv_dtype,
        "miss_rate": inputs.miss_rate,
        "tpot_ms": inputs.tpot_ms,
        "max_running": inputs.max_running,
        **plan.numbers(),
        "hisparse_config": hisparse_options(plan),
        "launch_flags": launch_flags(plan),
        "launch": launch_command(plan),
        "capacity": plan.capacity.as_dict() if plan.capacity else None,
        "findings": list(plan.findings),
        "notes": list(plan.notes),
    }


def render_like_vllm(answer: LikeVllm, gpu: str) -> str:
    """The calculator's answer as text."""
    gain = f"{answer.gain:.2f} x" if answer.gain else "only with the tier"
    rows = [
        (
            "requests",
            f"{answer.resident_requests} without, {answer.tiered_requests} with HiSparse ({gain})\n"
            f"limited by {LIMITS[answer.binding]}",
        ),
        ("KV", f"{answer.kv_gib:g} GiB of HBM a GPU"),
        ("host pool", f"{answer.host_pool_gib:g} GiB; smallest {answer.min_host_pool_gib} GiB"),
    ]
    return f"{MODEL} on {gpu}, as vLLM's published calculator counts\n\n{_aligned(rows)}"


def like_vllm_json(answer: LikeVllm) -> dict[str, Any]:
    """The calculator's answer, in the keys of a plan."""
    return {"sglang_hisparse": pin.PACKAGE, "like_vllm": True, "model": MODEL, **asdict(answer)}
