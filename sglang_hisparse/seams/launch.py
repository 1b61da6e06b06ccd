"""Stock's launcher, with our seams applied first."""

from __future__ import annotations

import os
import sys

from sglang.launch_server import run_server
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils import kill_process_tree

from sglang_hisparse.plugin import DISABLE, off, register


def launch(arguments: list[str]) -> None:
    """Parse `arguments` with stock's parser and serve until stopped."""
    register()
    load_plugins()
    if off():
        print(f"sglang_hisparse is switched off by {DISABLE}: stock SGLang runs", file=sys.stderr)
    try:
        run_server(prepare_server_args(arguments))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
