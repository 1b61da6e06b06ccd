"""Device work of the tier: `resolve` (selection -> device rows) and `copy_pages` (whole pages between tiers).

`reference.py` is the semantics, in torch, and what runs on a CPU pool. On CUDA `resolve.py` launches a kernel of
`csrc/` and `pages.py` the copy engines. Importing compiles nothing.
"""
