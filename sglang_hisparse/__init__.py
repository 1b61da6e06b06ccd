"""A host tier under SGLang's KV pool for models with top-k sparse attention."""

from sglang_hisparse.pin import PACKAGE as __version__

__all__ = ["__version__"]
