"""The launch command of a plan, ready to paste."""

from __future__ import annotations

import json
import shlex

from sglang_hisparse.planning.plan import Plan

SERVER_DTYPES = {"bf16": "bfloat16", "fp8": "fp8_e4m3"}


def hisparse_options(plan: Plan) -> dict[str, object]:
    """The JSON of --hisparse-config."""
    pool = plan.host_pool_gib
    options: dict[str, object] = {"host_pool_gib": int(pool) if pool == int(pool) else pool}
    if plan.inputs.hot_rows is not None:
        options["hot_rows"] = plan.inputs.hot_rows
    if plan.inputs.model.family == "quest":
        options["selector"] = "quest"
    return options


def launch_flags(plan: Plan) -> list[str]:
    """Arguments of `python -m sglang_hisparse.launch_server` that make the server size what was planned."""
    inputs = plan.inputs
    slots = inputs.max_running * (
        inputs.dp if inputs.dp_attention else 1
    )  # SGLang divides by the attention groups
    flags = ["--model-path", inputs.model.path, "--tp", str(inputs.tp)]
    if inputs.dp > 1:
        flags += ["--attn-dp-size" if inputs.dp_attention else "--dp", str(inputs.dp)]
    return [
        *flags,
        *("--context-length", str(inputs.context)),
        *("--kv-cache-dtype", SERVER_DTYPES[inputs.kv_dtype]),
        *("--mem-fraction-static", f"{inputs.fraction:g}"),
        *("--max-running-requests", str(slots)),
        *("--hisparse-config", json.dumps(hisparse_options(plan))),
    ]


def launch_command(plan: Plan) -> str:
    """One shell command."""
    return shlex.join(["python", "-m", "sglang_hisparse.launch_server", *launch_flags(plan)])
