"""Wiring: which services a process has, and how it reaches the others.

A process may have all services of a site on one database, or some, each with a database of its own; then what one
tells another goes through the site's NATS, on a subject for each receiver (``berlin.volumes``). What the other sites
must know goes out on ``berlin.out``, of which each peer has a mirror.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from redrive import ConfigurationError, Redrive, Work
from redrive.apps.controlplane import words
from redrive.apps.controlplane.addresses import Addresses
from redrive.apps.controlplane.machines import Machines
from redrive.apps.controlplane.requests import Requests
from redrive.apps.controlplane.resource import Provider
from redrive.apps.controlplane.settings import Environment, Settings, from_environment
from redrive.apps.controlplane.tables import make_tables
from redrive.apps.controlplane.volumes import Volumes
from redrive.apps.controlplane.words import KINDS, OWNER_OF, SERVICES
from redrive.apps.controlplane.world import World

PROVIDERS: Final[Mapping[str, type[Provider]]] = {"addresses": Addresses, "volumes": Volumes, "machines": Machines}


class ControlPlane(Redrive):
    """The services of one process: an app like any other, which knows its requests and its world."""

    world: World
    requests: Requests | None = None


def service(
    name: str | Sequence[str],
    site: str,
    url: str,
    *,
    world: str,
    nats: str | None = None,
    settings: Settings | None = None,
    also: Sequence[str] = (),
    token: str | None = None,
    migrate: bool | None = None,
) -> ControlPlane:
    """Make the app of one service of a site, or of several that share a database.

    ``world`` is the file of what is controlled, ``nats`` the site's broker, ``also`` the databases of the other
    services and sites, for the view of a whole request, ``token`` what callers of the HTTP API must bring.
    """
    names = (name,) if isinstance(name, str) else tuple(name)
    settings = settings or Settings(site=site)
    if settings.site != site:
        raise ConfigurationError(f"the settings are of {settings.site!r}, not of {site!r}")
    app = ControlPlane(url, site=site, source=names[0] if len(names) == 1 else "controlplane", migrate=migrate)
    app.world = World(world, app.clock)

    @app.when_open
    async def tables(tx: Work) -> None:
        await make_tables(app, tx)

    for each in names:
        if each == "requests":
            app.requests = Requests(app, settings)
            _serve(app, app.requests, also, token)
        elif each in PROVIDERS:
            PROVIDERS[each](app, app.world, settings)
        else:
            raise ConfigurationError(f"there is no service {each!r}: there are {', '.join(SERVICES)}")
    if nats is not None:
        _connect(app, nats, names, settings)
    return app


def _serve(app: ControlPlane, requests: Requests, also: Sequence[str], token: str | None) -> None:
    from redrive.apps.controlplane.http import http  # noqa: PLC0415 - a worker needs no web server to be installed

    app.mount("/controlplane", http(requests, [app, *also], token))


def _connect(app: Redrive, nats: str, names: Sequence[str], settings: Settings) -> None:
    """Route what the services of this process tell those of others, and take in what they are told."""
    from redrive.transport.nats import Nats  # noqa: PLC0415 - a whole site on one database needs no broker

    broker, site = Nats(nats), settings.site
    for receiver in SERVICES:
        types = _told(receiver, names)
        if receiver not in names and types:
            app.relay(*types, to=broker.subject(f"{site}.{receiver}"))
        elif receiver in names and set(names) != set(SERVICES):
            app.intake(broker.stream(site.upper(), durable=receiver, subject=f"{site}.{receiver}"))
    if "requests" in names and settings.peers:
        app.relay(*words.BETWEEN_SITES, to=broker.subject(f"{site}.out"))
        for peer in settings.peers:
            app.intake(broker.stream(f"FROM_{peer.upper()}", durable=site, subject=f"{peer}.out"))


def _told(receiver: str, by: Sequence[str]) -> list[str]:
    """List what a service is told by others."""
    if receiver == "requests":
        kinds = [kind for kind in KINDS if OWNER_OF[kind] in by]
        return [say(kind) for kind in kinds for say in (words.made, words.failed, words.gone)]
    if "requests" not in by:
        return []
    return [say(kind) for kind in KINDS if OWNER_OF[kind] == receiver for say in (words.wanted, words.unwanted)]


def app_from(environ: Mapping[str, str]) -> ControlPlane:
    """Make the app that the environment describes."""
    said = from_environment(environ)
    app = service(
        said.services, said.settings.site, said.url, world=said.world, nats=said.nats, settings=said.settings,
        also=said.also, token=said.token,
    )  # fmt: skip
    _stage(app, said)
    return app


def _stage(app: ControlPlane, said: Environment) -> None:
    """Bring the world into the state that was asked for, and make some requests if there are none."""

    @app.when_open
    async def set_the_stage(tx: Work) -> None:
        if said.faults:
            await app.world.tell(*said.faults)
        if said.sample and app.requests is not None:
            await app.requests.sample(tx)
