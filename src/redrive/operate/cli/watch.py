"""`redrive alerts` and `redrive dashboard`: what Prometheus and Grafana want to be given."""

from redrive.operate import alerts as shipped
from redrive.operate import dashboard as drawn
from redrive.operate.cli import show


def alerts() -> None:
    """Print alert rules for Prometheus."""
    print(shipped.rules().rstrip())


def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON to be imported."""
    print(show.json_text(drawn.dashboard(), indent=2))
