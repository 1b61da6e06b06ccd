"""Kernel benchmarks: exact miss counts, wrong bytes are seen, stock's state is stock's, a rehearsal runs through."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench_serving.kernels import (  # noqa: E402
    bench,
    ceilings,
    groups,
    issue_table,
    listed,
    pages,
    report,
    resolve,
    tune,
)
from bench_serving.kernels.ours import Ours  # noqa: E402
from bench_serving.kernels.pages_layout import Copies  # noqa: E402
from bench_serving.kernels.pool import HostBytes  # noqa: E402
from bench_serving.kernels.selections import place, select  # noqa: E402
from bench_serving.kernels.stock import Stock  # noqa: E402
from bench_serving.kernels.timer import Timer, Times  # noqa: E402
from sglang_hisparse.tier import listed_fetch  # noqa: E402

CPU = torch.device("cpu")
K, HOT, PAGES, ROW = 48, 128, 8, 656


@pytest.fixture(scope="module")
def pool() -> HostBytes:
    return HostBytes(4 * 64 * 64 * ROW, CPU)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("misses", [0, 1, 13, K])
@pytest.mark.parametrize("batch", [1, 5])
def test_exactly_so_many_misses(batch: int, misses: int) -> None:
    placement = place(batch, K, HOT, PAGES, 64, generator())
    tokens = select(placement, misses, generator())
    for request in range(batch):
        chosen, hot = set(tokens[request].tolist()), set(placement.hot[request].tolist())
        assert len(chosen) == K and len(hot) == HOT and len(chosen - hot) == misses
        assert max(chosen | hot) < placement.context - 1, "the newest token is in no table of stock's"
        assert len(set(placement.host_page[request].tolist())) == PAGES
    assert placement.age.min() >= 0 and placement.age.max() <= 30
    assert not torch.equal(tokens, tokens.sort(dim=1).values)


def test_requests_share_host_pages_only_where_they_must() -> None:
    roomy = place(4, K, HOT, PAGES, 4 * PAGES, generator()).host_page.flatten()
    assert len(roomy.unique()) == len(roomy)
    together = place(4, K, HOT, PAGES, 5 * PAGES, generator(), together=True).host_page
    assert (together[:, 1:] - together[:, :-1] == 1).all() and len(together.unique()) == 4 * PAGES
    tight = place(4, K, HOT, PAGES, PAGES, generator()).host_page
    assert all(len(row.unique()) == PAGES for row in tight)


def test_too_little_to_select_from() -> None:
    with pytest.raises(ValueError, match="128 hot and 48 fresh tokens of 2 pages"):
        place(1, K, HOT, 2, 64, generator())
    with pytest.raises(ValueError, match="of 8 pages, in a host pool of 7"):
        place(1, K, HOT, 8, 7, generator())
    placement = place(1, K, 16, PAGES, 64, generator())
    with pytest.raises(ValueError, match="48 hits among 16"):
        select(placement, 0, generator())


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("misses", [0, 13, K])
def test_both_systems_read_the_right_rows(pool: HostBytes, misses: int, layers: int) -> None:
    rows = 40 * 64
    host = pool.rows(rows * ROW * layers, ROW * layers)
    hosts = [pool.rows(rows * ROW, ROW, first=layer * rows * ROW) for layer in range(layers)]
    placement = place(3, K, HOT, PAGES, 40, generator())
    tokens = select(placement, misses, generator())
    ours, stock = Ours(placement, pool, host, ROW, layers), Stock(placement, pool, hosts)
    for system in (ours, stock):
        system.choose(tokens)
        system.poison()
    ours.launch()
    assert ours.wrong_rows() == 0 and ours.stats.tolist() == [0, 3 * (K - misses), 3 * misses, 0]
    stock.launch(record_plan=True)
    stock.launch_shared()
    assert stock.wrong_rows() == 0 and stock.missed() == 3 * misses
    for system, planes in ((ours, ours.planes), (stock, stock.buffers)):
        planes[-1][system.out[1, 5].long(), 7] ^= 1
        assert system.wrong_rows() == 1


def test_a_launch_that_copies_nothing_is_seen(pool: HostBytes) -> None:
    placement = place(2, K, HOT, PAGES, 40, generator())
    ours = Ours(placement, pool, pool.rows(40 * 64 * ROW, ROW), ROW)
    ours.choose(select(placement, 13, generator()))
    ours.poison()
    ours.launch(read_rows=False)
    assert ours.wrong_rows() == 2 * 13


@pytest.mark.parametrize("swept", [1, 1000], ids=["swept", "leader first"])
@pytest.mark.parametrize("way", ["one_launch", "apart"])
def test_every_way_of_fetching_brings_all_rows(
    way: str, swept: int, pool: HostBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listed_fetch, "SWEPT_REQUESTS", swept)
    host = pool.rows(16 * 64 * 4 * ROW, 4 * ROW)
    placement = place(2, K, HOT, PAGES, len(host) // 64, generator(), together=True)
    whole, stored = (Ours(placement, pool, host, ROW, 4, stored=stored) for stored in (False, True))
    places = [
        [plane.host.data_ptr() - host.data_ptr() for group in ours.groups for plane in group.planes]
        for ours in (whole, stored)
    ]
    assert places == [[0, ROW, 2 * ROW, 3 * ROW], [layer * len(host) * ROW for layer in range(4)]]
    tokens, computed = select(placement, 13, generator()), []
    step = listed.Step(whole, stored, SimpleNamespace(run=computed.append))  # type: ignore[arg-type]
    ours = whole if way == "one_launch" else stored
    ours.choose(tokens)
    ours.poison()
    getattr(step, way)()
    assert ours.wrong_rows() == 0 and computed == [0, 1, 2, 3]


def test_reset_makes_every_replay_miss_alike(pool: HostBytes) -> None:
    placement = place(2, K, HOT, PAGES, 40, generator())
    ours = Ours(placement, pool, pool.rows(40 * 64 * ROW, ROW), ROW)
    ours.choose(select(placement, 13, generator()))
    times = Timer(CPU, replays=4).measure(ours.launch, ours.reset)
    assert (
        ours.stats.tolist() == [0, 2 * (K - 13) * 4, 2 * 13 * 4, 0] and times.launches == len(times.us) == 4
    )


def test_known_bytes() -> None:
    pool = HostBytes(1 << 16, CPU)
    before = pool.buffer.clone()
    assert len(before.view(torch.int64).unique()) == 1 << 13
    pool.buffer[800:900] = 0
    pool.fill(800, 104)
    assert torch.equal(pool.buffer, before)


def test_spread() -> None:
    times = Times(tuple(float(us) for us in range(21, 0, -1)), 24)
    assert times.as_dict() == {"us_min": 1.0, "us": 11.0, "us_p90": 19.0}


def test_a_rehearsal_runs_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rehearsal = bench.Bench("cpu", True, tmp_path)
    for name, section in (("ceilings", ceilings), ("resolve", resolve), ("groups", groups), ("listed", listed),
                          ("pages", pages), ("tune", tune)):  # fmt: skip
        rehearsal.open(name, "a test")
        assert rehearsal.attempt(name, section.run, rehearsal)
    assert rehearsal.failures == []
    lines = report.load(tmp_path)
    assert all(line.get("exact", True) and not line.get("wrong") for line in lines)
    report.show(tmp_path)
    assert capsys.readouterr().out.count("not measured") == 6  # batch 16, and steps beside copies and fetches


def test_pages_to_copy_are_neighbours_or_scattered(tmp_path: Path) -> None:
    rehearsal = bench.Bench("cpu", True, tmp_path)
    for near in (True, False):
        copies = Copies(rehearsal, 2, ROW, 20, near)
        assert all(len(side.unique()) == 20 for side in copies.pairs.T)
        steps = copies.pairs[copies.pairs[:, 1].argsort()].diff(dim=0)
        together = int((steps == 1).all(dim=1).sum())
        assert together == 19 if near else together < 5


def test_a_failure_is_counted_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = bench.Bench("cpu", True, tmp_path)
    run.open("pages", "a test")

    def fails(_: Any) -> None:
        raise RuntimeError("no such thing")

    assert not run.attempt("one", fails, run) and run.attempt("other", lambda: None)
    assert run.failures == ["no such thing"]
    assert json.loads((tmp_path / "pages.jsonl").read_text().splitlines()[-1])["failed"] == "one"
    assert "no such thing" in capsys.readouterr().out


def test_a_figure_says_by_how_much_it_misses() -> None:
    where = {"section": "resolve", "pool_gib": 0.3, "row_bytes": 656}
    lines: list[dict[str, Any]] = [
        *({"section": "resolve", "kind": "all resident", "us": us} for us in (3.0, 5.0)),
        where | {"system": "ours", "batch": 1, "percent": 13.4, "us": 19.0, "gb_s": 9.0},
        where | {"system": "stock", "batch": 1, "percent": 13.4, "us": 51.0, "gb_s": 3.0},
        where | {"system": "ours", "batch": 16, "percent": 30.0, "us": 100.0, "gb_s": 40.0},
        where | {"system": "stock", "batch": 16, "percent": 30.0, "us": 176.0, "gb_s": 36.0},
        where | {"system": "gather", "batch": 16, "percent": 30.0, "us": 90.0, "gb_s": 44.0},
        where | {"system": "gather", "batch": 16, "percent": 30.0, "us": 97.0, "gb_s": 41.0},
        where | {"section": "ceilings", "kind": "gather", "us": 9.0, "gb_s": 41.0},
    ]
    for part, us in (("compute alone", 50.0), ("one launch, compute", 80.0), ("apart, compute", 84.0)):
        lines.append({"section": "listed", "part": part, "batch": 64, "percent": 30.0, "us": us})
    rows = {(row[0], row[2]): row for row in issue_table.rows(lines)}
    assert rows["followers apart, beside compute, batch 1 to 128", "never slower than one launch"][3:] == [
        "1.05 to 1.05 x the time; worst at batch 64, 30.0 %", "no: 5 % at worst",
    ]  # fmt: skip
    assert rows["all resident", "4 us"][3:] == ["3.0 to 5.0 us", "no: 1.0 us over (25 %)"]
    assert rows["batch 1, 13.4 %, 656 B, 0.3 GiB", "20 us"] == [
        "batch 1, 13.4 %, 656 B, 0.3 GiB", "51.0 us (51)", "20 us", "19.0 us", "yes",
    ]  # fmt: skip
    figure = "batch 16 and 64, 13.4 to 100 %"
    assert rows[figure, "95 % of the gather ceiling"][3].startswith("98 to 98 %")
    assert rows[figure, "95 % of a gather of the same rows"][4] == "no: 1 of 1 below, 5 points at worst"
    assert rows[figure, "never under stock"][3:] == [
        "1.76 to 1.76 x; lowest at 0.3 GiB, 656 B, batch 16, 30.0 %",
        "yes",
    ]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc in PATH")
def test_the_gather_compiles_without_spills(tmp_path: Path) -> None:
    import importlib.util
    import subprocess

    specs = [importlib.util.find_spec(name) for name in ("sglang", "tvm_ffi")]
    if None in specs:
        pytest.skip("sglang's JIT headers are not installed")
    sglang, tvm_ffi = (Path(spec.origin).parent for spec in specs)
    source = tmp_path / "unit.cu"
    header = Path(bench.__file__).parent / "csrc" / "gather.cuh"
    source.write_text(
        f'#include <tvm/ffi/function.h>\n#include "{header}"\nnamespace sglang {{\n'
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(gather, (hisparse_bench::Gather::run));\n"
        "TVM_FFI_DLL_EXPORT_TYPED_FUNC(empty, (hisparse_bench::Empty::run));\n}\n"
    )
    result = subprocess.run(
        [
            "nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-DSGL_CUDA_ARCH=900", "-std=c++20", "-O3",
            "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC", "-Xptxas", "-v", "-Werror", "all-warnings",
            f"-isystem={sglang / 'kernels' / 'jit' / 'include'}", f"-isystem={tvm_ffi / 'include'}",
            "-c", str(source), "-o", str(tmp_path / "unit.o"),
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") == 2
