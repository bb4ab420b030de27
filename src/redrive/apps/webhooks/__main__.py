"""`python -m redrive.apps.webhooks > webhooks.toml`: a file to begin with, and a secret that nobody else has."""

import base64
import os
import sys

_EXAMPLE = """\
# Each source is a sender: POST /hooks/shop. Secrets may stand in the environment: "env:SHOP_SECRET".

[sources.shop]
verify = "standard"        # standard (Standard Webhooks), github, stripe, or none
secrets = ["{secret}"]     # several while you exchange one for another
deliver = "shop:paid"      # module:function, https://…, nats://host:4222/subject, kafka://host:9092/topic, log
"""


def main() -> None:
    """Write it to standard output."""
    secret = "whsec_" + base64.b64encode(os.urandom(24)).decode("ascii")
    sys.stdout.write(_EXAMPLE.format(secret=secret))


if __name__ == "__main__":
    main()
