"""System: the parts put together."""

from typing import Any, Final

from redrive import Limits, Redrive
from redrive.apps.webhooks import tables
from redrive.apps.webhooks.destination import Destinations
from redrive.apps.webhooks.front import Front
from redrive.apps.webhooks.settings import Settings

PATH: Final = "/hooks"
_FORGET: Final = "webhooks.forget"
_ESCAPED: Final = 6  # a byte of text may take so many as JSON


def webhooks(settings: Settings, **options: Any) -> Redrive:
    """Make the app: sources with their destinations, the front, and the clean-up. The options are those of the app."""
    app = Redrive(
        settings.url,
        source="webhooks",
        retry=settings.retry,
        retention=settings.retention,
        limits=Limits(max_bytes=_ESCAPED * settings.max_bytes + 1_024),
        **options,
    )
    front = Front(app, settings)
    app.when_open(lambda tx: tables.make(tx, app.dialect, app.schema))
    destinations = Destinations(app, settings.retry, retry_every=settings.retry_every)
    for source in settings.sources:
        destinations.connect(source)
    app.mount(PATH, front)
    app.schedules.add("webhooks-forget", _FORGET, every="1h", catch_up="skip", retry_key=_FORGET)

    @app.handler(_FORGET)
    async def forget(_: None) -> None:
        await front.keeper.forget(settings.remember_days)

    return app
