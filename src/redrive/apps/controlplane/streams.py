"""Streams: what a site keeps on its NATS.

    python -m redrive.apps.controlplane.streams     once for each site, when the NATS servers of all sites are joined

``BERLIN`` holds what the services of Berlin tell one another, and what goes out; ``FROM_PARIS`` is a mirror of what
goes out of Paris, so that Berlin talks to its own server only. The JetStream domain of a site has the site's name.
"""

import asyncio
import os
import sys
from collections.abc import Sequence

import nats
from nats.js.api import ExternalStream, StreamConfig, StreamSource

from redrive import ConfigurationError
from redrive.apps.controlplane.settings import from_environment


async def declare(site: str, url: str, peers: Sequence[str] = ()) -> list[str]:
    """Make the streams of a site that are not there; answer their names."""
    wanted = [StreamConfig(name=site.upper(), subjects=[f"{site}.>"])]
    for peer in peers:
        there = ExternalStream(api=f"$JS.{peer}.API")
        origin = StreamSource(name=peer.upper(), filter_subject=f"{peer}.out", external=there)
        wanted.append(StreamConfig(name=f"FROM_{peer.upper()}", mirror=origin))
    client = await nats.connect(url)
    try:
        for config in wanted:
            await client.jsm().add_stream(config)
    finally:
        await client.close()
    return [str(config.name) for config in wanted]


def main() -> None:
    """Declare the streams that the environment asks for."""
    try:
        said = from_environment(os.environ)
        if said.nats is None:
            raise ConfigurationError("CONTROLPLANE_NATS is missing: say where the site's NATS is")  # noqa: TRY301
    except ConfigurationError as error:
        sys.exit(str(error))
    names = asyncio.run(declare(said.settings.site, said.nats, said.settings.peers))
    sys.stdout.write(f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} there\n")


if __name__ == "__main__":
    main()
