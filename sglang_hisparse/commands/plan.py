"""`sglang-hisparse plan`: how many requests run with and without the tier, and what to launch. Touches no device."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sglang_hisparse.planning.gpus import GPUS, find_gpu
from sglang_hisparse.planning.inputs import LEAST_HOT_MISS_RATE, Inputs
from sglang_hisparse.planning.known_models import KNOWN
from sglang_hisparse.planning.like_vllm import HOT_ROWS, MAX_SEQUENCES, MODEL, like_vllm
from sglang_hisparse.planning.models import KV_DTYPES, find_model
from sglang_hisparse.planning.page import page
from sglang_hisparse.planning.plan import make_plan
from sglang_hisparse.planning.report import as_json, like_vllm_json, render, render_like_vllm

NAME = "plan"
HELP = "plan a deployment: requests with and without the tier, what binds, the launch flags"
MAX_RUNNING = 256


def whole(text: str) -> int:
    """A whole number; argparse shows the message with the option's name."""
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number (example: 8)") from None


def number(text: str) -> float:
    """A number; argparse shows the message with the option's name."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number (example: 0.5)") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add = parser.add_argument
    add("--model", help=f"config.json, a folder that holds one, or a known name: {', '.join(KNOWN)}")
    add("--gpu", default="H200", help=f"{', '.join(GPUS)} (default: %(default)s)")
    add("--tp", type=whole, help="GPUs of one server, SGLang's --tp (default: 1; with --like-vllm 8)")
    add("--dp", type=whole, default=1, help="data-parallel replicas, SGLang's --dp (default: %(default)s)")
    add("--dp-attention", action="store_true", help="the replicas share the --tp GPUs (--attn-dp-size)")
    add("--context", type=whole, default=81920, help="tokens of a request (default: %(default)s)")
    add(
        "--host-pool-gib",
        type=number,
        help="host pool of a rank (default: the smallest with which the most run)",
    )
    add("--hot-rows", type=whole, help="most hot rows of a request (default: 2 x top-k)")
    add("--kv-dtype", choices=KV_DTYPES, help="KV rows (default: fp8 for DSA models, else bf16)")
    add("--weights-gib", type=number, help="weights on one GPU (default: counted from the shapes)")
    add(
        "--miss-rate",
        type=number,
        default=LEAST_HOT_MISS_RATE,
        help="part of a selection of spilled rows that is not among the hot rows (default: %(default)s)",
    )
    add("--tpot-ms", type=number, default=50.0, help="time of a decode step (default: %(default)g)")
    add("--max-running", type=whole, help=f"request slots of a replica (default: {MAX_RUNNING})")
    add("--mem-fraction", type=number, help="SGLang's --mem-fraction-static (default: by GPU, 0.85 to 0.88)")
    add("--host-ram-gib", type=number, help="memory of the host (default: what is usual for the GPU)")
    add("--like-vllm", action="store_true", help=f"count as vLLM's published calculator for {MODEL} does")
    add("--json", action="store_true", help="print one JSON object")
    add("--html", metavar="FILE", type=Path, help="also write a page with the same inputs as sliders")


def run(options: argparse.Namespace) -> int:
    """Print the plan; 1 when something keeps it from working, 2 for wrong usage."""
    try:
        return _run_like_vllm(options) if options.like_vllm else _run(options)
    except ValueError as error:
        print(f"sglang-hisparse plan: error: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    if options.model is None:
        raise ValueError(f"--model is missing: a config.json, its folder, or one of {', '.join(KNOWN)}")
    inputs = inputs_of(options)
    plan = make_plan(inputs)
    if options.html is not None:
        try:
            options.html.write_text(page(inputs), encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--html {options.html}: cannot be written ({error.strerror})") from None
    if options.json:
        print(json.dumps(as_json(plan), indent=2))
    else:
        print(render(plan))
        if options.html is not None:
            print(f"\nPage: {options.html}")
    return 1 if plan.findings else 0


def inputs_of(options: argparse.Namespace) -> Inputs:
    """The options as planning takes them. ValueError that names the option."""
    model = find_model(options.model)
    return Inputs(
        model=model,
        gpu=find_gpu(options.gpu),
        tp=1 if options.tp is None else options.tp,
        dp=options.dp,
        dp_attention=options.dp_attention,
        context=options.context,
        host_pool_gib=options.host_pool_gib,
        hot_rows=options.hot_rows,
        kv_dtype=options.kv_dtype or model.default_dtype,
        weights_gib=options.weights_gib,
        miss_rate=options.miss_rate,
        tpot_ms=options.tpot_ms,
        max_running=MAX_RUNNING if options.max_running is None else options.max_running,
        mem_fraction=options.mem_fraction,
        host_ram_gib=options.host_ram_gib,
    )


def _run_like_vllm(options: argparse.Namespace) -> int:
    if options.model is not None and find_model(options.model).name != MODEL:
        raise ValueError(f"--model {options.model} --like-vllm: the published calculator knows {MODEL} only")
    if options.html is not None:
        raise ValueError("--html with --like-vllm: the page shows our own plan; leave one of them out")
    model = find_model(MODEL)
    tp = 8 if options.tp is None else options.tp
    inputs_of(argparse.Namespace(**{**vars(options), "model": MODEL, "tp": tp}))  # the same checks
    gpu = find_gpu(options.gpu).name
    answer = like_vllm(
        gpu,
        tp,
        options.dp,
        options.context,
        hot_rows=HOT_ROWS if options.hot_rows is None else options.hot_rows,
        kv_dtype=options.kv_dtype or model.default_dtype,
        host_pool_gib=options.host_pool_gib,
        max_running=MAX_SEQUENCES if options.max_running is None else options.max_running,
        weights_gib=options.weights_gib,
    )
    print(json.dumps(like_vllm_json(answer), indent=2) if options.json else render_like_vllm(answer, gpu))
    return 0 if answer.tiered_requests else 1
