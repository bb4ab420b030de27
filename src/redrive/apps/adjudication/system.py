"""System: put the parts together."""

from collections.abc import Mapping

from redrive import ConfigurationError, Redrive, RetryPolicy
from redrive.apps.adjudication.desk import EXECUTE, UNKNOWN, Desk
from redrive.apps.adjudication.execution import Execution
from redrive.apps.adjudication.http import site
from redrive.apps.adjudication.records import Records
from redrive.apps.adjudication.settings import Settings


def make(environ: Mapping[str, str]) -> Redrive:
    """Make the app as the environment says."""
    settings = Settings.read(environ)
    app = Redrive(settings.url, source="adjudication")
    records = Records(app)
    app.when_open(records.make_tables)
    desk = Desk(app, records, settings.unknown_kept)
    execution = Execution(app, records, settings.dispatch)
    try:
        app.handler(
            EXECUTE,
            retry=RetryPolicy.quick(),
            on_retry=execution.on_retry,
            on_dead_letter=execution.on_dead_letter,
            timeout=settings.timeout,
            isolation=settings.isolation,
            brake=False,  # when everything fails people are to decide at once: that is what re-escalation is for
        )(execution.execute)
    except ConfigurationError as error:
        raise ConfigurationError(f"ADJUDICATION_TIMEOUT: {error}") from error
    app.handler(UNKNOWN, retry=RetryPolicy(max_attempts=1), brake=False)(desk.try_again)
    app.mount("/adjudication", site(desk, settings.token))
    return app
