"""Device work of the tier: `resolve` (selection -> device rows) and `copy_pages` (whole pages between tiers).

`reference.py` is the semantics, in torch, and what runs on a CPU pool. `resolve.py` and `pages.py` have the
same signatures and pick the CUDA kernel of `csrc/` for a pool on CUDA. Importing compiles nothing.
"""
