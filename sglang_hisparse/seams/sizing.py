"""Sizing: stock's KV budget becomes device pages, and everything above the pool sees the logical size.

Stock's resolved `max_total_num_tokens` is replaced by the logical tokens. Allocator, radix tree, admission and the
longest request follow from that number; only our KV pool class knows how many device pages stand behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sglang.srt.configs.model_config import dsa_layer_skips_topk, get_dsa_index_topk, is_deepseek_dsa
from sglang.srt.model_executor.pool_configurator import (
    DefaultPoolConfigurator,
    create_memory_pool_configurator,
)
from sglang.srt.runtime_context import get_exec, get_parallel, get_schedule

from sglang_hisparse.capacity import GIB, Capacity, TokenBytes, capacity_block, size_pools
from sglang_hisparse.config import HiSparseConfig
from sglang_hisparse.kernels.resolve import MissList
from sglang_hisparse.seams.runtime import runtime
from sglang_hisparse.selectors import Selector
from sglang_hisparse.selectors.dsa import dsa_selector
from sglang_hisparse.selectors.quest import QuestParameters, quest_selector

logger = logging.getLogger(__name__)

QUEST_TOP_K, QUEST_PAGE, QUEST_RECENT = 2048, 64, 64

LEAST_AT_ONCE = 64
"""Requests: their list takes a MiB with a top-k of 2,048."""


def resolve_pool_config(original: Callable[..., Any], configurator: Any, pre_model_load_memory: int) -> Any:
    """Stock's pool configuration, with the logical size in place of the device size."""
    config = original(configurator, pre_model_load_memory)
    if runtime.config is None or configurator.is_draft_worker:
        return config
    runtime.selector, token = _selector_and_bytes(configurator, runtime.config)
    chunk = max(0, get_schedule().chunked_prefill_size or 0)
    tiered_on_cuda = runtime.config.host_pool_gib > 0 and str(configurator.device).startswith("cuda")
    beside = 0
    if tiered_on_cuda:
        beside = MissList.bytes(requests_at_once(), runtime.selector.top_k)
    capacity = size_pools(
        budget_bytes=configurator._profile_available_bytes(pre_model_load_memory) - beside,
        most_device_tokens=get_schedule().max_total_tokens,
        host_pool_gib=runtime.config.host_pool_gib,
        token=token,
        groups=len(runtime.selector.groups),
        top_k=runtime.selector.top_k,
        hot_rows=runtime.config.hot_rows,
        most_requests=config.max_running_requests,
        context_length=configurator.model_config.context_len,
        chunk_tokens=chunk if runtime.selector.prefill_reads_host else 0,
        prefill_reads_host=runtime.selector.prefill_reads_host,
        pools=-(-get_parallel().dp_size * get_parallel().tp_size // get_parallel().nnodes),
    )
    config.max_total_num_tokens = capacity.logical_tokens
    config.max_running_requests = configurator.resolve_max_num_reqs(capacity.logical_tokens)
    runtime.capacity = capacity = replace(capacity, request_slots=config.max_running_requests)
    if get_parallel().tp_rank == 0:
        for line in capacity_block(capacity):
            logger.info(line)
        _warn(capacity)
    return config


def requests_at_once() -> int:
    """Requests that one resolve takes, which is how many the list of misses holds: as many as the largest decode graph
    that SGLang may capture. Without graphs enough that a step is not many launches."""
    decode = get_exec().graph.cuda_graph_config.decode
    return int(max(LEAST_AT_ONCE, *(decode.bs or [decode.max_bs or 1])))


def _warn(capacity: Capacity) -> None:
    if capacity.table_bytes > GIB:
        logger.warning(
            f"HiSparse: hot tables take {capacity.table_bytes / GIB:.2f} GiB of HBM; a lower --max-running-requests or "
            "hot_rows makes them smaller"
        )


def _selector_and_bytes(configurator: Any, config: HiSparseConfig) -> tuple[Selector, TokenBytes]:
    """The model's selector, and the bytes of one token on this rank."""
    model, layers = configurator.model_config, configurator.layer_info.num_effective_layers
    sizes: Any = create_memory_pool_configurator(configurator)
    if type(sizes) is not DefaultPoolConfigurator:
        raise ValueError(
            f"HiSparse supports models with one kind of KV pool; {model.hf_config.architectures} is sized by "
            f"{type(sizes).__name__}"
        )
    cell = sizes._cell_size
    if is_deepseek_dsa(model.hf_config):
        index = sizes._compute_dsa_indexer_cell_size(kvc=configurator, num_layers=layers)
        skips = [dsa_layer_skips_topk(model.hf_config, layer) for layer in range(layers)]
        return dsa_selector(get_dsa_index_topk(model.hf_config), skips), TokenBytes(
            cell - index, cell - index, index
        )
    quest = QuestParameters(
        top_k=config.top_k or QUEST_TOP_K,
        page_size=config.page_size or QUEST_PAGE,
        recent=config.recent_tokens or QUEST_RECENT,
    )
    quest.check()
    runtime.quest = quest
    share = model.head_dim / (model.head_dim + model.v_head_dim)
    return quest_selector(quest, layers), TokenBytes(cell, cell, 2 * cell * share / quest.page_size)
