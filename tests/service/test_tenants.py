"""Several tenants in one service: nothing of one is another's, and what breaks one stops no other."""

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from postgres_server import PostgresServer
from test_processes import MELON, Running, until

from commands import Run
from melon import Client
from melon.errors import SettingsError
from melon.service.config import read_service, read_settings
from melon.service.keys import KeyFile, keys_of
from melon.service.log.events import EventLog, LogReader
from melon.service.log.files import EVENTS


def written(folder: Path, text: str) -> Path:
    file = folder / "service.toml"
    file.write_text(text)
    return file


class TestSettings:
    def test_a_section_says_what_the_service_does_not(self, tmp_path: Path) -> None:
        file = written(tmp_path, f"""
            rate = 50
            data = "{tmp_path}/live"
            log = "postgresql://db/melon?schema=reco"
            [tenants.news]
            [tenants.shop]
            rate = 9
            log = "postgresql://other/melon"
            data = "{tmp_path}/elsewhere"
        """)  # fmt: skip
        service, tenants = read_service(file, {"port": 81})
        assert [*tenants] == ["news", "shop"]
        news, shop = tenants.values()
        assert (service.rate, news.rate, shop.rate, news.port) == (50, 50, 9, 81)
        assert (news.folder, shop.folder) == (tmp_path / "live" / "news", tmp_path / "elsewhere")
        logs = [one.log.get_secret_value() for one in (news, shop) if one.log is not None]
        assert logs == ["postgresql://db/melon?schema=reco_news", "postgresql://other/melon"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[tenants.News]", "lower-case letters, digits and _"),
            ("tenants.news = 3", "lower-case letters, digits and _"),
            ("[tenants.news]\nport = 1", "port belongs to the whole service"),
            ("[tenants.news]\nrat = 1", r"unknown setting of tenant news 'rat'. Did you mean 'rate'"),
            ("keys = 'k'\n[tenants.news]", "each tenant has its own"),
            ("[tenants.a]\ndata = 'd'\n[tenants.b]\ndata = 'd'", "tenants a and b have the same folder"),
            (
                "[tenants.a]\nlog = 'postgresql://h/d'\n[tenants.b]\nlog = 'postgresql://h/d'",
                "tenants a and b have the same log",
            ),
        ],
    )
    def test_what_cannot_be_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            read_service(written(tmp_path, text), {})

    def test_other_commands_name_the_tenants(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"has tenants \(news\); only melon serve"):
            read_settings(written(tmp_path, "[tenants.news]"), {})

    def test_the_settings_are_shown_and_read_back(self, tmp_path: Path, run: Run) -> None:
        file = written(tmp_path, "rate = 5.0\n[tenants.news]\nburst = 7\n[tenants.shop]\nrate = 6.0")
        before = read_service(file, {})
        assert "unknown tenant 'sho'" in run("serve", "--config", file, "--tenant", "sho").said
        assert read_service(written(tmp_path, run("serve", "--config", file, "--show-config").out), {}) == before


class Answer(NamedTuple):
    status: int
    content: str


class Shops(Running):
    """A service with the tenants news and shop, each with a key, and one whose log is damaged."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.keys = folder / "live", dict[str, str]()
        for name in ("news", "shop"):
            self.keys[name] = KeyFile(self.folder / name / "keys.json").add(["read", "write", "admin"])[0]
        (self.folder / "broken").mkdir()
        (self.folder / "broken" / EVENTS).write_bytes(b"no log" * 1_000)
        file = written(
            folder,
            f'model = "{model}"\ndata = "{self.folder}"\nfit_after = 0\nburst = 100\n'
            "[tenants.news]\n[tenants.shop]\nrate = 0.01\nburst = 5\n[tenants.broken]\n",
        )
        super().__init__("--config", file)

    def ask(self, path: str, body: Any = None, key: str | None = None) -> Answer:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        content = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, content, headers), timeout=30) as got:
                return Answer(got.status, got.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())

    def stands(self, name: str) -> int:
        """The offset that a tenant's model knows."""
        model = json.loads(self.ask(f"/t/{name}/v1/status", key=self.keys[name]).content)["model"]
        return int(model["offset"]) if model else -1


@pytest.fixture(scope="module")
def shops(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    service = Shops(tmp_path_factory.mktemp("tenants"), shop)
    until(lambda: service.ask("/t/news/health/ready").status == service.ask("/t/shop/health/ready").status == 200)
    yield service
    assert service.stop() == 0


def test_nothing_of_one_tenant_is_anothers(shops: Shops) -> None:
    news, shop = shops.keys.values()
    assert shops.ask("/health/live").status == 200
    assert json.loads(shops.ask("/health/ready").content) == {"status": "ready", "tenants": 3, "open": 2}
    # Keys: none of another tenant, none at all.
    assert shops.ask("/t/news/v1/status", key=news).status == 200
    for path in (
        "/t/shop/v1/status",
        "/t/shop/v1/recommendations/u1",
        "/t/shop/metrics",
        "/t/shop/v1/users/u1/history",
    ):
        assert shops.ask(path, key=news).status == 401
        assert shops.ask(path).status == 401
    for path in (
        "/v1/status",
        "/",
        "/metrics",
        "/t/",
        "/t/none/v1/status",
        "/t/ne%77s/v1/status",
        "/t/news%2Fv1/status",
    ):
        assert shops.ask(path, key=news).status == 404, path
    # Events, ids and lists: the same event id is another event of another tenant.
    event = {"user": "u1", "item": "i7", "event_id": "e1"}
    assert json.loads(shops.ask("/t/news/v1/interactions", event, news).content)["accepted"] == 1
    assert json.loads(shops.ask("/t/shop/v1/interactions", {**event, "user": "u9"}, shop).content)["accepted"] == 1
    assert json.loads(shops.ask("/t/news/v1/interactions", event, news).content)["duplicates"] == 1
    with LogReader(shops.folder / "news") as one, LogReader(shops.folder / "shop") as other:
        assert [event.user for event in one.events(1, 9)] == ["u1"]
        assert [event.user for event in other.events(1, 9)] == ["u9"]
    # Metrics say whose they are.
    told = shops.ask("/t/news/metrics", key=news).content
    assert 'melon_events_total{outcome="accepted",tenant="news"} 1.0' in told
    assert 'tenant="shop"' not in told
    # Limits: the shop's five requests at once are used up, the news' hundred are not.
    assert 429 in [shops.ask("/t/shop/v1/status", key=shop).status for _ in range(5)]
    assert shops.ask("/t/news/v1/status", key=news).status == 200


def test_a_tenant_that_breaks_stops_no_other(shops: Shops) -> None:
    broken = shops.ask("/t/broken/v1/status")
    assert (broken.status, json.loads(broken.content)["error"]["code"]) == (503, "tenant_closed")
    assert str(shops.folder) not in broken.content
    until(lambda: shops.children().keys() >= {"api", "news/learner", "shop/learner"})
    api = shops.children()["api"]
    os.kill(shops.children()["shop/learner"], signal.SIGKILL)
    with Client(f"{shops.url}/t/news", key=shops.keys["news"]) as client:
        seen = client.record("u2", "i3")
        until(lambda: shops.stands("news") >= seen.offset, 60)
        assert client.recommend("u2", k=5).items
    assert shops.children()["api"] == api
    # The log is mended: the tenant is opened within seconds, with keys of its own.
    (shops.folder / "broken" / EVENTS).unlink()
    EventLog(shops.folder / "broken").close()
    until(lambda: shops.ask("/t/broken/health/live").status == 200, 60)


def test_commands_find_the_tenant(shops: Shops, tmp_path: Path, run: Run) -> None:
    lines = tmp_path / "more.jsonl"
    lines.write_text('{"user": "u3", "item": "i4", "time": 5, "event_id": "m1"}\n')
    words = "log", "import", shops.folder / "news", lines, "--key", shops.keys["news"]
    assert "1 events appended" in run(*words).out


@pytest.mark.slow
def test_learners_of_tenants_run_on_any_host(shop: Path, tmp_path: Path) -> None:
    """With a database: one machine serves lists for both tenants, each learner has a machine of its own."""
    server = PostgresServer()
    log = server.url("reco")
    file = written(tmp_path, f'model = "{shop}"\nlog = "{log}"\nfit_after = 0\n[tenants.news]\n[tenants.shop]\n')
    _, tenants = read_service(file, {"data": tmp_path / "api"})
    keys = {name: keys_of(one).add(["read", "write"])[0] for name, one in tenants.items()}
    learners: dict[str, subprocess.Popen[bytes]] = {}
    api = Running("--config", file, "--data", tmp_path / "api", "--role", "api")
    clients = {name: Client(f"{api.url}/t/{name}", key=key) for name, key in keys.items()}

    def learned(name: str, offset: int) -> bool:
        model = clients[name].status()["model"]
        return model is not None and model["offset"] >= offset

    try:
        until(lambda: json.loads(urllib.request.urlopen(f"{api.url}/health/ready").read())["open"] == 2)
        for name in tenants:
            words = "--config", file, "--data", tmp_path / name, "--role", "learner", "--tenant", name
            learners[name] = subprocess.Popen([MELON, "serve", *map(str, words)])
        offsets = {name: client.record("u1", "i3", event_id="e1").offset for name, client in clients.items()}
        until(lambda: all(learned(name, offset) for name, offset in offsets.items()), 120)
        learners["news"].kill()  # a machine that is gone: the other tenant does not see it
        learners["news"].wait()
        waits, goes_on = (clients[name].record("u2", "i5").offset for name in ("news", "shop"))
        until(lambda: learned("shop", goes_on), 60)
        words = "--config", file, "--data", tmp_path / "another", "--role", "learner", "--tenant", "news"
        learners["news"] = subprocess.Popen([MELON, "serve", *map(str, words)])
        until(lambda: learned("news", waits), 120)
    finally:
        for process in learners.values():
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        assert api.stop() == 0
        server.remove()
