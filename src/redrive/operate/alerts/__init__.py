"""Alerts: the rules for Prometheus that come with the package; `redrive alerts` prints them."""

from importlib import resources


def rules() -> str:
    """Return the rules as they are written for Prometheus."""
    return resources.files(__name__).joinpath("redrive.rules.yml").read_text(encoding="utf-8")
