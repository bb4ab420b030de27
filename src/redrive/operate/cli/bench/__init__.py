"""`redrive bench`: how fast it is here, beside the raw driver and the peers, in one run."""

from redrive.operate.cli.bench.commands import bench

__all__ = ["bench"]
