"""Subcommands of `sglang-hisparse`, one a file: `NAME`, `HELP`, `add_arguments(parser)`, `run(options)`.

`run` returns the exit code. No command needs torch, SGLang or a GPU to be imported or to run.
"""
