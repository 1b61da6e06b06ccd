"""Benchmark aid: a synthetic trace in place of what a dummy model's selector picks. Outputs are meaningless.

A request with `context` tokens or more reads step (tokens - context) of a trace; which trace, its row of req_to_token
and the index group say. So neighbours differ, and the layers of a group share one, as they do in the models.

    tokens of a row   step of the trace                    selected units
    below context     -                                    left to the selector
    context + s       s % steps                            complete ones of the first context + s % steps positions
"""

from __future__ import annotations

from typing import Any

import torch

from sglang_hisparse import traces
from sglang_hisparse.benchmark_aids import REPLAY, ReplayOptions
from sglang_hisparse.selectors.quest import QuestParameters


class SelectionReplay:
    """The traces as device tables. Written once; nothing here synchronises, so all of it is CUDA-graph safe.

    units  int32 [variants * steps, k]: the unit ids that a step selects
    first  int64 [groups, request rows]: row of `units` where the trace of a (group, request row) starts
    """

    def __init__(
        self,
        options: ReplayOptions,
        top_k: int,
        groups: int,
        request_rows: int,
        device: torch.device | str,
        quest: QuestParameters | None = None,
    ) -> None:
        """`top_k`: positions a step selects, for DSA; `quest`: the parameters of Quest, which then decide.

        ValueError where the options do not fit the selector.
        """
        available = options.context
        if quest is not None:
            if options.unit != quest.page_size:
                raise ValueError(f"{REPLAY}: unit {options.unit} is not Quest's page_size {quest.page_size}")
            # The newest positions are read in any case: pages before the window, and the fewest that any length takes.
            top_k = (quest.top_k - quest.recent - quest.page_size + 1) // quest.page_size * quest.page_size
            available -= quest.recent
        options.check_selection(top_k, available)
        self.options, self.top_k, self.quest = options, top_k, quest
        base = traces.generate(
            k=top_k // options.unit,
            context=available,
            unit=options.unit,
            steps=options.steps,
            overlap=options.overlap,
            tail=options.tail,
            seed=options.seed,
        )
        self.trace_overlap = float(traces.overlaps(base).mean()) if options.steps > 1 else 1.0
        complete = available // options.unit
        tables = [traces.shuffled(base, complete, options.seed + i) for i in range(options.variants)]
        self.units = torch.cat([torch.from_numpy(table) for table in tables]).to(device)
        variant = (torch.arange(groups)[:, None] + torch.arange(request_rows)) % options.variants
        self.first = (variant * options.steps).to(device)
        self._within = torch.arange(options.unit, dtype=torch.int32, device=device)

    def select(
        self, requests: torch.Tensor, tokens: torch.Tensor, groups: slice = slice(None)
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One decode step of a batch.

        requests  int [R]: row of req_to_token, negative for a padded row
        tokens    int [R]: sequence length, the token of this step included
        groups    the index groups to select for

        Returns (positions int32 [groups, R, top_k], replayed bool [R]). Positions are distinct and below `tokens`
        where `replayed`; elsewhere they are below `context` and not to be used.
        """
        since = tokens.long() - self.options.context
        replayed = (since >= 0) & (requests >= 0)
        step = (
            since.clamp(min=0) % self.options.steps
        )  # no torch.where with a number: it copies that to the device
        at = self.first[groups].index_select(1, requests.long().clamp(min=0)) + step
        units = self.units[at]
        if self.options.unit == 1:
            return units, replayed
        return (units.unsqueeze(-1) * self.options.unit + self._within).flatten(2), replayed

    def quest_positions(self, group: int, request: int, length: int, selected: torch.Tensor) -> torch.Tensor:
        """Positions int64 that one request reads under Quest, ascending: the trace's pages and the recent window in
        place of `selected`, which is returned where the request is too short. Synchronises, like Quest itself."""
        assert self.quest is not None
        device = self.units.device
        positions, replayed = self.select(
            torch.tensor([request], device=device),
            torch.tensor([length], device=device),
            slice(group, group + 1),
        )
        if not replayed.item():
            return selected
        size = self.quest.page_size
        window = (length - self.quest.recent) // size * size
        chosen = positions[0, 0].long().sort().values
        return torch.cat((chosen, torch.arange(window, length, device=device)))

    def as_dict(self) -> dict[str, Any]:
        """For /server_info: what the traces are like, and their bytes on the device."""
        return {
            "selected_positions": self.top_k,
            "trace_overlap": round(self.trace_overlap, 4),
            "table_bytes": self.units.nbytes + self.first.nbytes,
        }


def slots_of(positions: torch.Tensor, requests: torch.Tensor, req_to_token: torch.Tensor) -> torch.Tensor:
    """Positions int32 [groups, R, k] -> slots int32, by req_to_token int32 [request rows, context]. Graph-safe."""
    rows = requests.long().clamp(min=0).view(1, -1, 1)
    return req_to_token[rows, positions.long()].to(torch.int32)
