"""Requests that grew beyond what a prefill can compute: where prefill reads HBM only, longer than the device pool.

Retraction frees a request's KV and computes it again later, which for these cannot be done. So they are retracted
last, and admission sees to it that all of them together fit at their longest (`policy.admission.can_finish`). Where
an operator retracts everything, as `/pause_generation` in mode `retract` does, they end with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from sglang_hisparse.capacity import ceil_pages
from sglang_hisparse.config import PAGE
from sglang_hisparse.seams.lifecycle import longest_prefill_of
from sglang_hisparse.seams.runtime import runtime


def outgrown(req: Any) -> int | None:
    """Tokens that a prefill of `req` could compute at most, where it has more; None where it has not."""
    if runtime.tier is None:
        return None
    longest = longest_prefill_of(runtime.tier)
    if longest is None or ceil_pages(len(req.origin_input_ids) + len(req.output_ids)) <= longest:
        return None
    return longest * PAGE


def retraction_order(result: list[int], reqs: list[Any]) -> list[int]:
    """Stock's order, from the one to keep to the one to retract first, but those that cannot come back in front."""
    return sorted(result, key=lambda index: outgrown(reqs[index]) is None)


def queue_request(
    original: Callable[..., None], scheduler: Any, req: Any, is_retracted: bool = False
) -> None:
    """A request that waits to be prefilled. One that never can be would wait for ever: it ends here."""
    longest = outgrown(req)
    if longest is None:
        original(scheduler, req, is_retracted)
        return
    from sglang.srt.managers.scheduler import _make_abort_req

    message = (
        f"HiSparse: the request was retracted with {len(req.origin_input_ids) + len(req.output_ids)} tokens; prefill "
        f"can compute {longest} again, what the device pool holds. Raise --mem-fraction-static or --max-total-tokens, "
        "or lower max_new_tokens"
    )
    reason = {"type": "abort", "status_code": HTTPStatus.SERVICE_UNAVAILABLE, "message": message}
    scheduler._release_aborted_request(req)
    scheduler.send_abort_output(_make_abort_req(req, finished_reason=reason), req)
    req.time_stats.trace_ctx.abort(abort_info={"reason": message})
