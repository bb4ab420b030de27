"""What the file and the environment say; a bad value is a clear error at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive import ConfigurationError, Redrive
from redrive.apps import webhooks as package
from redrive.apps.webhooks import Settings, webhooks
from tests.apps.webhooks.conftest import HERE, SECRET

GOOD = f"""
max_bytes = 5000

[sources]
shop = {{ secrets = ["env:SHOP_SECRET", "{SECRET}"], deliver = "{HERE}:take" }}

[sources.hub]
verify = "github"
secrets = "s3cret"
deliver = ["{HERE}:take", "https://user:pw@ci.example:8443/hook?token=x", "nats://127.0.0.1:4222/builds", "log"]
"""


def read(folder: Path, text: str, **environ: str) -> Settings:
    (folder / "webhooks.toml").write_text(text, encoding="utf-8")
    return Settings.read({"SHOP_SECRET": SECRET, **environ}, folder)


def test_a_source_is_a_line_and_each_destination_a_target(tmp_path: Path) -> None:
    settings = read(tmp_path, GOOD, REDRIVE_URL="sqlite:///elsewhere.db")
    app = webhooks(settings)

    assert [(each.name, each.verify) for each in settings.sources] == [("shop", "standard"), ("hub", "github")]
    assert settings.sources[0].secrets == (SECRET, SECRET)
    assert (settings.max_bytes, app.url) == (5_000, "sqlite:///elsewhere.db")
    assert set(app.handlers) >= {
        "webhook.shop", "webhook.hub",
        "webhook.hub:ci.example/hook", "webhook.hub:log", "relay:webhook.hub:nats:builds",
    }  # fmt: skip
    assert app.handlers["webhook.hub:ci.example/hook"].needs == ("ci.example-8443",)


def test_without_a_file_there_is_one_source_for_this_machine_only(tmp_path: Path) -> None:
    (source,) = Settings.read({}, tmp_path).sources

    assert (source.name, source.verify, source.is_open, source.deliver) == ("try", "none", False, ("log",))


@pytest.mark.req("H3")
def test_the_curve_comes_from_the_environment(tmp_path: Path) -> None:
    usual, said = (
        Settings.read(environ, tmp_path).retry.schedule()
        for environ in ({}, {"RETRY_BASE_DELAY": "2s", "RETRY_MAX_DELAY": "10s", "MAX_ATTEMPTS": "4"})
    )

    assert usual == [10.0, 20.0, 40.0, 80.0]
    assert said == [4.0, 8.0, 10.0]


@pytest.mark.req("H3")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RETRY_BASE_DELAY", "soon"),
        ("RETRY_BASE_DELAY", "-5s"),
        ("RETRY_MAX_DELAY", "1s"),
        ("RETRY_MAX_DELAY", "5 apples"),
        ("MAX_ATTEMPTS", "0"),
        ("MAX_ATTEMPTS", "five"),
        ("RETENTION_FAILED", "a while"),
        ("RETENTION_DELIVERED", "x"),
        ("WEBHOOKS_CONFIG", "nowhere.toml"),
    ],
)
def test_a_bad_value_in_the_environment_is_a_clear_error_that_names_it(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Settings.read({name: value}, tmp_path)


WRONG = {
    "no TOML": ("sources = [", "cannot be read"),
    "no source": ("", "no sources"),
    "a slip": ('[sources.shop]\nverfy = "github"\nsecrets = "x"\ndeliver = "log"', "verfy, which nobody knows"),
    "a slip at the top": ("max_byte = 5\n" + GOOD, "max_byte, which nobody knows"),
    "an unknown kind": ('[sources.shop]\nverify = "md5"\ndeliver = "log"', "standard, github, stripe, none"),
    "no secret": ('[sources.shop]\ndeliver = "log"', "needs secrets"),
    "a secret that is none": ('[sources.shop]\nsecrets = "§"\ndeliver = "log"', "not base64"),
    "a secret that is not there": ('[sources.shop]\nsecrets = "env:NOPE"\ndeliver = "log"', "no NOPE"),
    "nowhere to go": ('[sources.shop]\nverify = "none"', "say where to"),
    "a name for no URL": ('[sources."a/b"]\nverify = "none"\ndeliver = "log"', "stands in the URL"),
    "no table": ("sources = 7", "must be a table"),
    "no table either": ("[sources]\nshop = 7", "must be a table"),
    "an odd id": ('[sources.shop]\nverify = "none"\nid = "cookie:x"\ndeliver = "log"', "header:NAME or body:FIELD"),
    "a word for a number": ("body_seconds = true\n" + GOOD, "a number from 0.1"),
    "a number for a word": ('[sources.shop]\nverify = "none"\nopen = 1\ndeliver = "log"', "true or false"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_file_that_cannot_work_is_refused_with_the_place(kind: str, tmp_path: Path) -> None:
    text, why = WRONG[kind]

    with pytest.raises(ConfigurationError, match=why) as refused:
        read(tmp_path, text)

    assert "webhooks.toml" in str(refused.value)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("nowhere", "neither module:function"),
        ("no_such_module:f", "cannot be imported"),
        (f"{HERE}:nothing", "cannot be imported"),
        (f"{HERE}:SECRET", "not a function"),
        ("nats://127.0.0.1:4222", "host:port/name"),
        ("https:///path", "names no host"),
    ],
)
def test_a_destination_that_is_none_is_refused(said: str, why: str, tmp_path: Path) -> None:
    settings = read(tmp_path, f'[sources.shop]\nverify = "none"\ndeliver = "{said}"')

    with pytest.raises(ConfigurationError, match=why):
        webhooks(settings)


def test_the_app_of_this_process_is_made_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_URL", raising=False)
    package._app.cache_clear()

    app = package.app

    assert isinstance(app, Redrive)
    assert app is package.app
    with pytest.raises(AttributeError, match="nothing"):
        package.nothing  # noqa: B018 - asked for
    package._app.cache_clear()
