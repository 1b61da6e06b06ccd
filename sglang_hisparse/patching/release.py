"""SGLang's source files, wherever they are: a wheel, the installed package, a checkout, a folder with `sglang/`.

The wheel's `sglang/` is `python/sglang/` of the repository.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from sglang_hisparse import pin

PREFIX = "python/"
"""Where the repository keeps what a wheel has at its top."""


class PatchError(Exception):
    """Something about SGLang's files or the patches does not fit. The message says what, where, and what to do."""


def blob_id(data: bytes) -> str:
    """What git calls a file of these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def lines_of(text: str) -> list[str]:
    """Lines as git sees them, with their ends: `str.splitlines` also cuts at form feeds and the like."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


@contextlib.contextmanager
def opened(where: str | Path | None = None) -> Iterator[Path]:
    """The folder that holds `sglang/`, for a wheel, a checkout, such a folder, or (None) the installed package.

    A wheel's Python files are unpacked for as long as the context lasts. PatchError where there is no SGLang.
    """
    if where is None:
        yield _installed()
        return
    path = Path(where)
    if path.suffix == ".whl":
        if not path.is_file():
            raise PatchError(
                f"there is no wheel {path}; `pip download --no-deps {pin.requirement()}` fetches one"
            )
        with tempfile.TemporaryDirectory(prefix="hisparse-wheel-") as folder:
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(folder, [n for n in wheel.namelist() if re.match(r"sglang/.*\.py$", n)])
            yield checked(Path(folder), str(path))
        return
    for root in (path / "python", path, path.parent):
        if root.joinpath("sglang", "srt").is_dir() and (root != path.parent or path.name == "sglang"):
            yield root
            return
    raise PatchError(
        f"{path} is no SGLang: a wheel, a checkout (python/sglang/srt) or a folder with sglang/ works"
    )


def checked(root: Path, name: str) -> Path:
    """`root`, where it holds SGLang. PatchError where it does not."""
    if not root.joinpath("sglang", "srt").is_dir():
        raise PatchError(f"{name} holds no sglang/srt: is it a wheel of SGLang?")
    return root


def version_of(root: Path) -> str:
    """The version that the files below `root` give themselves; "" where they do not say (a checkout never built)."""
    path = root / "sglang" / "_version.py"
    found = re.search(r"__version__ = version = '([^']+)'", path.read_text()) if path.is_file() else None
    return found[1] if found else ""


def read(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Text of repository paths (`python/sglang/...`) below `root`, line ends as they are. PatchError names a missing
    one."""
    texts = {}
    for name in names:
        path = root / name.removeprefix(PREFIX)
        if not path.is_file():
            raise PatchError(f"{path} is missing: this is not SGLang {pin.SGLANG}")
        texts[name] = path.read_bytes().decode()
    return texts


def check_unchanged(names: Iterable[str]) -> None:
    """PatchError where an installed file is not the one its wheel brought, by the hashes that pip recorded."""
    distribution = importlib.metadata.distribution("sglang")
    hashes = {str(file): file.hash for file in distribution.files or ()}
    for name in names:
        installed = name.removeprefix(PREFIX)
        recorded = hashes.get(installed)
        path = Path(str(distribution.locate_file(installed)))
        if recorded is None or recorded.mode != "sha256":
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        if digest != recorded.value:
            raise PatchError(
                f"{path} was changed after it was installed, so patches made from it would fit nobody else's SGLang. "
                f"Reinstall it: pip install --force-reinstall --no-deps {pin.requirement()}"
            )


def _installed() -> Path:
    spec = importlib.util.find_spec("sglang")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise PatchError(f"SGLang is not installed, and no other was named: pip install {pin.requirement()}")
    root = Path(places[0]).parent
    version = version_of(root) or importlib.metadata.version("sglang")
    if version != pin.SGLANG:
        raise PatchError(
            f"the installed SGLang is {version}, the patches are made from {pin.SGLANG}: name its wheel with "
            f"--release, or pip install {pin.requirement()}"
        )
    return root
