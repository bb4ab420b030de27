"""Publish in Django's own transaction. Django has one set of settings a process, so each case has a process."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from redrive import Redrive
from tests.stores.helpers import is_postgres, output_of, start_python

CODE = """
import json, sys
import django
from django.conf import settings

url, engine = sys.argv[1], json.loads(sys.argv[2])
settings.configure(DATABASES={"default": engine}, INSTALLED_APPS=[], USE_TZ=True, DEBUG=True)
django.setup()
from django.db import connection, connections, transaction
from redrive import Redrive

app = Redrive(url, source="shop")
told = {}

class Stop(Exception):
    pass

with connection.cursor() as cursor:
    cursor.execute("create table orders (n integer)")

try:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("insert into orders values (1)")
        app.publish_in_sync(connection, "rolled.back", {"n": 1})
        raise Stop
except Stop:
    pass

with transaction.atomic():
    with connection.cursor() as cursor:
        cursor.execute("insert into orders values (2)")
    first = app.publish_in_sync(connection, "order.placed", {"100%": "s %s ü"}, retry_key="k", subject="o/2")
    again = app.publish_in_sync(connection, "order.placed", 2, retry_key="k")
    by_alias = app.publish_in_sync(connections["default"], "by.alias")
    try:
        with transaction.atomic():
            app.publish_in_sync(connection, "in.a.savepoint")
            raise Stop
    except Stop:
        pass

with connection.cursor() as cursor:
    cursor.execute("select n from orders")
    told["orders"] = cursor.fetchall()
told["created"] = [first.created, again.created, by_alias.created]
told["same"] = first.id == again.id
connection.close()
print(json.dumps(told))
"""


async def test_an_event_stands_and_falls_with_djangos_transaction(store_url: str) -> None:
    parts = urlsplit(store_url)
    engine = f'{{"ENGINE": "django.db.backends.sqlite3", "NAME": "{store_url.removeprefix("sqlite:///")}"}}'
    if is_postgres(store_url):
        engine = (
            f'{{"ENGINE": "django.db.backends.postgresql", "NAME": "{parts.path[1:]}", "HOST": "{parts.hostname}",'
            f' "PORT": {parts.port}, "USER": "{parts.username}", "PASSWORD": "{parts.password}"}}'
        )
    async with Redrive(store_url, migrate=True) as app:
        told = await asyncio.to_thread(lambda: output_of(start_python(CODE, store_url, engine)))
        events = {event.type: event for event in await app.events()}

    assert told.strip() == '{"orders": [[2]], "created": [true, false, true], "same": true}'
    assert sorted(events) == ["by.alias", "order.placed"]
    placed = events["order.placed"]
    assert (placed.payload, placed.subject, placed.source) == ({"100%": "s %s ü"}, "o/2", "shop")
