"""Selector families: what is selected, which layers share a selection, what prefill reads."""

from sglang_hisparse.selectors.base import Selector

__all__ = ["Selector"]
