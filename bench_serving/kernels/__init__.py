"""Kernel benchmarks: this machine's ceilings, resolve beside stock's swap-in kernel, page copies, the table of issue 3.

    python -m bench_serving.kernels.run --out DIR                 all sections in one process
    python -m bench_serving.kernels.{ceilings,resolve,groups,pages,tune} --out DIR
    python -m bench_serving.kernels.report DIR                    the table, from the lines in DIR

`--device cpu --small` runs everything through the reference kernels at toy sizes: a rehearsal, not a measurement.

Method: one captured graph a measurement, replayed 20 times after 3; in it the reset of the tables, a write of 128 MB
that turns L2 over, an event, the launch, an event. Every configuration is checked once against the bytes of the host
rows, and the miss counts of all replays against the wanted ones.
"""
