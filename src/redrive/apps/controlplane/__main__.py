"""Be the fate of the systems that are controlled: let them fail, recover, or lose what they had.

python -m redrive.apps.controlplane tell hypervisor=down storage=lose/20
python -m redrive.apps.controlplane heal [hypervisor …]
python -m redrive.apps.controlplane destroy hypervisor vm-…
python -m redrive.apps.controlplane ls
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Final

from redrive import ConfigurationError
from redrive.apps.controlplane.settings import from_environment
from redrive.apps.controlplane.world import SYSTEMS, Fault, World

_DESTROYED: Final = 2


async def act(world: World, verb: str, said: Sequence[str]) -> list[str]:
    """Do what was said; answer with lines."""
    if verb == "tell" and said:
        await world.tell(*map(Fault.parse, said))
        return [f"{each}" for each in said]
    if verb == "heal" and set(said) <= set(SYSTEMS):
        await world.heal(*said)
        return [f"{each} is well" for each in said or SYSTEMS]
    if verb == "destroy" and len(said) == _DESTROYED and said[0] in SYSTEMS:
        await world.destroy(*said)
        return [f"{said[1]} is gone"]
    if verb == "ls" and not said:
        things = [(system, thing) for system in SYSTEMS for thing in await world.seen(system)]
        return [f"{system:11} {thing.name} {thing.facts or ''}".rstrip() for system, thing in things]
    raise ConfigurationError(str(__doc__).strip())


def main() -> None:
    """Act on the world that the environment names."""
    verb, *said = sys.argv[1:] or [""]
    try:
        world = World(from_environment(os.environ).world)
        lines = asyncio.run(act(world, verb, said))
    except ConfigurationError as error:
        sys.exit(str(error))
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
