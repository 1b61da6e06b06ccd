"""`python -m sglang_hisparse.launch_server <every stock flag> --hisparse-config '{"host_pool_gib": 64}'`.

Works from a checkout too: children are spawned and run this file's top level again (as `__mp_main__`), which
registers the seams there. Where the package is installed SGLang's plugin loader does so as well, which changes nothing.
"""

from __future__ import annotations

import sys

from sglang_hisparse.plugin import register

if __name__ == "__mp_main__":
    register()

if __name__ == "__main__":
    from sglang_hisparse.seams.launch import launch

    launch(sys.argv[1:])
