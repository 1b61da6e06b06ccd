"""Where this package meets SGLang: the only folder that imports `sglang.srt`. Start at `table.py`."""
