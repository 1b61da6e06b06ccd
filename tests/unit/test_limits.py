"""Host memory limits, read from made-up roots, and the refusal that names a size that fits."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import pytest

from sglang_hisparse.limits import GIB, Limit, check_host_pool, host_limits

RAM, LOCKED = "available RAM of the machine", "locked memory (ulimit -l)"
V1, V2 = "sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory.max"
V1_USE, V2_USE = "sys/fs/cgroup/memory/memory.usage_in_bytes", "sys/fs/cgroup/memory.current"
UNLIMITED = resource.RLIM_INFINITY


def root_of(tmp_path: Path, available_gib: float = 100, **files: str | int) -> Path:
    """A root with /proc/meminfo and the named files ("__" stands for "/")."""
    kib = int(available_gib * (1 << 20))
    meminfo = (
        f"MemTotal:       999999999 kB\nMemFree:        1 kB\nMemAvailable:   {kib} kB\nSwapFree:  77 kB\n"
    )
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return tmp_path


def limits_of(tmp_path: Path, locked: int = UNLIMITED, **files: str | int) -> dict[str, float]:
    limits = host_limits(root_of(tmp_path, **files), locked)
    assert [limit.free_gib for limit in limits] == sorted(limit.free_gib for limit in limits), (
        "tightest first"
    )
    return {limit.name: limit.free_gib for limit in limits}


def test_available_memory_and_not_free_memory(tmp_path: Path) -> None:
    assert limits_of(tmp_path) == {RAM: 100.0}


def test_an_old_kernel_without_available_memory(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    (root / "proc/meminfo").write_text("MemTotal: 1000 kB\n")
    assert host_limits(root, UNLIMITED) == []


@pytest.mark.parametrize(("limit", "use"), [(V2, V2_USE), (V1, V1_USE)])
def test_a_cgroup_leaves_its_limit_less_its_use(tmp_path: Path, limit: str, use: str) -> None:
    found = limits_of(tmp_path, **{limit: 48 * GIB, use: 40 * GIB})
    assert list(found.items()) == [(f"cgroup limit /{limit}", 8.0), (RAM, 100.0)]


@pytest.mark.parametrize(
    "files",
    [
        {V2: "max", V2_USE: 1},
        {V1: 0x7FFFFFFFFFFFF000, V1_USE: 1},  # how v1 says "no limit"
        {V2: 48 * GIB},  # the root group has no use file
        {V1_USE: 40 * GIB},
    ],
)
def test_a_cgroup_without_a_limit(tmp_path: Path, files: dict[str, str | int]) -> None:
    assert limits_of(tmp_path, **files) == {RAM: 100.0}


def test_both_cgroup_versions(tmp_path: Path) -> None:
    files = {V2: 48 * GIB, V2_USE: 8 * GIB, V1: 30 * GIB, V1_USE: 10 * GIB}
    assert list(limits_of(tmp_path, **files).values()) == [20.0, 40.0, 100.0]


def test_locked_memory_is_listed(tmp_path: Path) -> None:
    assert limits_of(tmp_path, locked=8 << 20) == {LOCKED: 8 / 1024, RAM: 100.0}
    assert LOCKED not in limits_of(tmp_path, locked=-1)


def test_the_system_is_asked_for_locked_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: asked.append(which) or (4 * GIB, UNLIMITED))
    limits = host_limits(root_of(tmp_path))
    assert (limits[0], asked) == (Limit(LOCKED, 4.0), [resource.RLIMIT_MEMLOCK])


def test_this_machine_has_limits() -> None:
    assert any(limit.name == RAM and limit.free_gib > 0 for limit in host_limits())


@pytest.mark.parametrize(("wanted", "ranks"), [(98, 1), (49, 2), (12.25, 8), (0, 8)])
def test_pools_that_just_fit(wanted: float, ranks: int) -> None:
    check_host_pool(wanted, ranks, [Limit(RAM, 100.0)])


@pytest.mark.parametrize(
    ("wanted", "ranks", "fits"), [(98.1, 1, 98), (64, 2, 49), (13, 8, 12.2), (1, 1000, 0)]
)
def test_a_refusal_names_a_size_that_fits(wanted: float, ranks: int, fits: float) -> None:
    limits = [Limit(RAM, 100.0), Limit("cgroup limit", 200.0)]
    with pytest.raises(ValueError) as caught:
        check_host_pool(wanted, ranks, limits)
    message = str(caught.value)
    assert message == (
        f"host_pool_gib {wanted:g} x {ranks} rank(s) of this host is more than the {RAM} leaves: 100.0 GiB, of which "
        f"2 GiB stay free. A host_pool_gib that fits: {fits:g}"
    )
    check_host_pool(float(message.rpartition(" ")[2]), ranks, limits)


@pytest.mark.parametrize("tightest", [0.0, 1.0, 2.5, 7.77, 33.33])
def test_the_tightest_limit_is_named(tightest: float) -> None:
    limits = sorted([Limit(RAM, 100.0), Limit("cgroup limit /x", tightest)], key=lambda limit: limit.free_gib)
    with pytest.raises(ValueError, match=re.escape("the cgroup limit /x leaves")) as caught:
        check_host_pool(90, 1, limits)
    check_host_pool(float(str(caught.value).rpartition(" ")[2]), 1, limits)


def test_locked_memory_does_not_refuse() -> None:
    check_host_pool(50, 1, [Limit(LOCKED, 0.01), Limit(RAM, 100.0)])
