"""`python -m sglang_hisparse.launch_server <every stock flag> --hisparse-config '{"host_pool_gib": 64}'`.

Stock's launcher with our seams. Works from a checkout too: children are spawned and run this file's top level again
(as `__mp_main__`), which registers the seams there; with the package installed SGLang's plugin loader has done so
already, and registering twice changes nothing.
"""

from __future__ import annotations

import sys

from sglang_hisparse.plugin import off, register

if __name__ == "__mp_main__":
    register()


def main(arguments: list[str]) -> None:
    """Launch a server with stock's own parser and run loop."""
    import sglang.srt.managers.scheduler  # noqa: F401  (the seams of the scheduler apply in this process too)
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    register()
    load_plugins()
    if off():
        print("sglang_hisparse is switched off by SGLANG_HISPARSE_DISABLE: stock SGLang runs", file=sys.stderr)
    try:
        run_server(prepare_server_args(arguments))
    finally:
        import os

        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
