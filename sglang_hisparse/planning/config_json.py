"""Reading a config.json: whole-number fields, which layers keep KV, which layers select."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


class Fields:
    """Whole-number fields of a config; ValueError that names a missing one."""

    def __init__(self, config: Config, name: str) -> None:
        self.config, self.name = config, name

    def __call__(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is there, else `default`."""
        for field in names:
            value = self.config.get(field)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
        if default is None:
            shown = " or ".join(names)
            raise ValueError(
                f"--model {self.name}: its config.json has no whole number {shown}, which planning needs"
            )
        return default


def attention_layers(text: Config, count: int) -> list[int]:
    """Ids of the layers that keep KV: all but the linear-attention ones."""
    linear = text.get("linear_attn_config") or {}
    if kinds := text.get("layer_types"):
        return [i for i, kind in enumerate(kinds[:count]) if kind != "linear_attention"]
    if linear.get("full_attn_layers"):
        return [i for i in linear["full_attn_layers"] if i < count]
    interval = text.get("full_attention_interval") or 1
    return [i for i in range(count) if (i + 1) % interval == 0]


def skips_selection(text: Config, layer: int) -> bool:
    """Whether a DSA layer reuses the selection of the layer before: SGLang's dsa_layer_skips_topk."""
    if (kinds := text.get("indexer_types")) is not None:
        return layer < len(kinds) and kinds[layer] == "shared"
    if (factor := text.get("cli_factor") or 1) > 1:
        return layer % int(factor) != 0
    if (pattern := text.get("index_topk_pattern")) is not None:
        return layer < len(pattern) and pattern[layer] == "S"
    every, offset = text.get("index_topk_freq") or 1, text.get("index_skip_topk_offset")
    return max(layer - (1 if offset is None else offset - 1), 0) % int(every) != 0
