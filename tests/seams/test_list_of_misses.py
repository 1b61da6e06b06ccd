"""How many requests the list of misses is made for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("sizes", "most", "wanted"),
    [([1, 2, 160], None, 160), ([1, 2, 4], None, 64), ([], 256, 256), ([], None, 64), (None, 8, 64)],
    ids=["graphs", "small graphs", "most", "no graphs", "few"],
)
def test_as_many_as_the_largest_graph(
    sizes: list[int] | None, most: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")
    from sglang_hisparse.kernels.resolve import MissList
    from sglang_hisparse.seams import sizing

    decode = SimpleNamespace(bs=sizes, max_bs=most)
    graph = SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=decode))
    monkeypatch.setattr(sizing, "get_exec", lambda: SimpleNamespace(graph=graph))
    assert sizing.requests_at_once() == wanted
    misses = MissList.create(wanted, 2048, "cpu")
    assert MissList.bytes(wanted, 2048) == misses.rows.nbytes + misses.count.nbytes
    assert MissList.bytes(sizing.LEAST_AT_ONCE, 2048) <= (1 << 20) + 256
