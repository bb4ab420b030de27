"""How a run that has several processes spreads its tests over them."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling


class Spread(LoadScopeScheduling):  # type: ignore[misc]  # it ships no types
    """Whoever is free takes the next test, but those that share what is slow to start stay together, and go first."""

    def _split_scope(self, nodeid: str) -> str:
        module, _, test = nodeid.partition("::")
        if module.startswith("tests/console/"):  # a module has a Chromium of its own
            return module
        if module == "tests/transport/test_nats_cluster.py":  # which has a cluster of its own
            return module
        if module == "tests/test_mission.py":  # which reads all tests once
            return module
        return "kafka" if "kafka" in nodeid and "mock" not in test else nodeid  # a process has a Kafka of its own
