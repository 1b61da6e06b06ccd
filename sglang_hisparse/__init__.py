"""A host tier under SGLang's KV pool, for top-k sparse attention."""

from sglang_hisparse.pin import PACKAGE as __version__

__all__ = ["__version__"]
