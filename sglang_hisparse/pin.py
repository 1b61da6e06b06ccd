"""The one place a version stands. Build metadata, Makefile, CI, docs and seams all read it from here.

`python sglang_hisparse/pin.py` prints the requirement lines of a development environment, one a line;
the hash of that output names the cached virtual environment (see Makefile).
"""

PACKAGE = "0.1.0"
"""Version of this package."""

SGLANG = "0.5.23"
"""The SGLang release whose function bodies the seam table fingerprints."""

BUILT_ON = {
    "torch": "2.14.1",
    "sglang-kernel": "0.4.10",
    "flashinfer-python": "0.7.2",
    "apache-tvm-ffi": "0.1.11",
}
"""What that SGLang release itself pins and this package builds on. Checked, never installed by us."""

TEST_TOOLS = (
    "pytest==9.2.0",
    "hypothesis==6.170.17",
    "pytest-timeout==2.4.0",
    "ruff==0.17.6",
    "mypy==2.4.1",
    "clang-format==23.1.5",
    "hatchling==1.33.0",
)
"""Tools of `make test` and `make lint`."""


def requirement() -> str:
    """The pinned requirement of the extra `[sglang]`."""
    return f"sglang=={SGLANG}"


if __name__ == "__main__":
    print("\n".join((requirement(), *TEST_TOOLS)))
