"""Planning before there is a server: what fits where, for which model on which GPU. Standard library only.

The sizing itself is `sglang_hisparse.capacity`, the function that the server calls at start; this folder knows the
numbers that a server measures (memory, weights, bytes a token) from published shapes.
"""
