"""`python -m redrive.operate.cli.bench`: the same as `redrive bench`."""

from redrive.operate.cli.bench.commands import bench

bench(prog_name="redrive bench")
