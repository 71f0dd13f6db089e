"""Settings of the service from file, environment and flags; ids and times in requests; API keys."""

import json
import math
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from melon.cli.serve import _assigned
from melon.errors import DataError, SettingsError
from melon.service.config import ServeSettings, read_settings
from melon.service.ids import read_id, read_time
from melon.service.keys import Bucket, KeyFile


class TestSettings:
    def test_flags_beat_the_environment_beats_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "melon.toml"
        file.write_text('port = 1\nhost = "localhost"\nbatch_most = 7\nlearn = ["view"]\nhide = ["no"]\n')
        for name, text in {"PORT": "2", "BATCH_MOST": "8", "LEARN": "view, buy"}.items():
            monkeypatch.setenv(f"MELON_SERVE_{name}", text)
        monkeypatch.setenv("MELON_DATA", "elsewhere")  # where benchmarks look for streams
        settings = read_settings(file, {"port": 3, "host": None})
        assert (settings.port, settings.host, settings.batch_most) == (3, "localhost", 8)
        assert settings.uses() == {"view": "learn", "buy": "learn", "no": "hide", "impression": "store"}
        assert settings.data is None

    @pytest.mark.parametrize("name", ServeSettings.model_fields)
    def test_every_field_is_set_by_file_environment_and_flag_and_documented(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        default = ServeSettings.model_fields[name].default
        value = {bool: not default, int: 7777, float: 77.5, str: "::1", tuple: ("x",)}.get(type(default), "a/b")
        value = ("https://a/",) if name == "webhooks" else value
        pairs = {"tls_cert": "tls_key", "tls_key": "tls_cert", "webhooks": "webhook_secret"}
        more = {pairs[name]: "k"} if name in pairs else {}
        plain = list(value) if isinstance(value, tuple) else value
        wanted = ServeSettings.parse({name: plain, **more}, "test")
        file = tmp_path / "melon.toml"
        file.write_text(f"{name} = {json.dumps(plain)}\n")
        assert read_settings(file, more) == wanted
        assert read_settings(None, {**more, **_assigned([f"{name}={json.dumps(plain)}"])}) == wanted
        monkeypatch.setenv(f"MELON_SERVE_{name.upper()}", plain[0] if isinstance(plain, list) else str(plain))
        assert read_settings(None, more) == wanted
        assert getattr(wanted, name) != default

    def test_variables_that_are_no_settings_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MELON_SERVE_PROT", "1")
        with pytest.raises(SettingsError, match="MELON_SERVE_PORT"):
            read_settings(None, {})
        monkeypatch.delenv("MELON_SERVE_PROT")
        monkeypatch.setenv("MELON_PORT", "1")
        with pytest.raises(SettingsError, match="MELON_SERVE_PORT"):
            read_settings(None, {})

    def test_what_is_shown_can_be_read_again(self, tmp_path: Path) -> None:
        settings = ServeSettings(port=81, model=Path("model"), rate=2.5, log_ids=True)
        file = tmp_path / "melon.toml"
        file.write_text(settings.toml())
        assert read_settings(file, {}) == settings

    def test_the_folder_stands_beside_the_model(self) -> None:
        assert ServeSettings(model=Path("here/model")).folder == Path("here/model.live")
        assert ServeSettings(model=Path("model"), data=Path("d")).key_file == Path("d/keys.json")

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"prot": 1}, "Did you mean 'port'"),
            ({"port": 70_000}, "port = 70000"),
            ({"port": "x"}, "port"),
            ({"learn": ""}, "no event type is learned"),
            ({"learn": "view", "hide": "view"}, "named twice"),
            ({"tls_cert": "a.pem"}, "belong together"),
            ({"header_s": math.nan}, "header_s"),
            ({"batch_most": 0}, "batch_most"),
        ],
    )
    def test_bad_values_are_named(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(SettingsError, match=message):
            read_settings(None, values)

    def test_bad_files_and_variables_are_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(SettingsError, match="cannot be read"):
            read_settings(tmp_path / "none.toml", {})
        (tmp_path / "bad.toml").write_text("port = = 3")
        with pytest.raises(SettingsError, match="not valid TOML"):
            read_settings(tmp_path / "bad.toml", {})
        (tmp_path / "odd.toml").write_text("prot = 3")
        with pytest.raises(SettingsError, match=r"odd\.toml"):
            read_settings(tmp_path / "odd.toml", {})
        monkeypatch.setenv("MELON_SERVE_PORT", "many")
        with pytest.raises(SettingsError, match="port = 'many'"):
            read_settings(None, {})


class TestIds:
    def test_ids_are_read_as_the_book_has_them(self) -> None:
        one = uuid.uuid4()
        assert read_id("27", "int", "user") == read_id(27, "int", "user") == 27
        assert read_id(27, "str", "user") == read_id("27", None, "user") == "27"
        assert read_id(str(one), "uuid", "user") == one
        assert read_id("käse/brot 🧀", None, "item") == "käse/brot 🧀"

    @pytest.mark.parametrize(
        ("value", "kind"),
        [
            ("", None), ("x" * 257, None), ("ä" * 129, None), ("a\x00b", None), ("a\nb", None), ("\ud800", None),
            ("x" * 10_000, "str"), ("seven", "int"), ("07", "int"), ("1.0", "int"), (str(1 << 63), "int"),
            ("no uuid", "uuid"), (True, None), (1.5, None), (None, None), (["a"], None),
        ],
    )  # fmt: skip
    def test_ids_that_cannot_be_are_refused(self, value: Any, kind: Any) -> None:
        with pytest.raises(DataError, match="user"):
            read_id(value, kind, "user")

    def test_times_are_seconds_or_iso(self) -> None:
        now = 1_800_000_000.0
        assert read_time(None, now) == 1_800_000_000
        assert read_time("2026-11-16T18:05:02Z", now) == read_time("2026-11-16T18:05:02", now) == 1_794_852_302
        assert read_time("2026-11-16T19:05:02+01:00", now) == 1_794_852_302
        assert read_time(12.9, now) == 12
        assert read_time(now + 299, now) == 1_800_000_299

    @pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1e300, 1.8e9 + 301, "now", "9999-12-31", True, [1]])
    def test_times_that_cannot_be_are_refused(self, value: Any) -> None:
        with pytest.raises(DataError, match="time"):
            read_time(value, 1.8e9)


class TestKeys:
    def test_a_key_is_found_until_it_is_revoked(self, tmp_path: Path) -> None:
        keys = KeyFile(tmp_path / "keys.json")
        text, key = keys.add(["read", "write"], note="shop")
        assert text.startswith(f"mk_{key.id}_")
        assert text not in keys.path.read_text()
        assert keys.path.stat().st_mode & 0o077 == 0
        assert KeyFile(keys.path).find(text) == key
        assert key.allows("read", time.time())
        assert not key.allows("admin", time.time())
        for wrong in ("", "mk", text[:-1], text + "0", text.replace("mk", "mq"), "mk__", f"mk_{key.id}_", "\ud800"):
            assert KeyFile(keys.path).find(wrong) is None
        keys.revoke(key.id)
        assert KeyFile(keys.path).find(text) is None

    def test_the_file_is_watched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("melon.service.keys._CHECK_EVERY_S", 0.0)
        served, commands = KeyFile(tmp_path / "keys.json"), KeyFile(tmp_path / "keys.json")
        assert served.keys() == {}
        text, key = commands.add(["admin"])
        assert served.find(text) == key
        commands.revoke(key.id)
        assert served.find(text) is None

    def test_keys_end(self, tmp_path: Path) -> None:
        _, key = KeyFile(tmp_path / "keys.json").add(["read"], days=1)
        assert key.expires is not None
        assert key.allows("read", key.expires - 1)
        assert not key.allows("read", key.expires)

    def test_bad_keys_are_refused(self, tmp_path: Path) -> None:
        keys = KeyFile(tmp_path / "keys.json")
        for scopes, days in ((["reed"], None), ([], None), (["read"], 0), (["read"], math.nan)):
            with pytest.raises(SettingsError):
                keys.add(scopes, days=days)
        with pytest.raises(SettingsError, match="unknown key"):
            keys.revoke("0")
        for content in ("{", json.dumps({"keys": [{"id": "a"}]}), json.dumps({"keys": [1]})):
            keys.path.write_text(content)
            with pytest.raises(DataError, match=r"keys\.json"):
                keys.add(["read"])
            damaged = KeyFile(keys.path)
            assert (damaged.keys(), damaged.required) == ({}, True)
            assert damaged.problem is not None

    def test_a_folder_that_had_keys_needs_them_for_ever(self, tmp_path: Path) -> None:
        assert not KeyFile(tmp_path / "keys.json").required
        assert KeyFile(tmp_path / "keys.json", required=True).required
        keys = KeyFile(tmp_path / "keys.json", tmp_path / "data")
        _, key = keys.add(["admin"])
        keys.revoke(key.id)
        keys.path.unlink()
        assert KeyFile(tmp_path / "keys.json", tmp_path / "data").required
        elsewhere = tmp_path / "other"
        assert not KeyFile(tmp_path / "keys.json", elsewhere).required
        keys.add(["read"])
        assert KeyFile(tmp_path / "keys.json", elsewhere).required  # a service that sees keys marks its own folder
        keys.path.unlink()
        assert KeyFile(tmp_path / "keys.json", elsewhere).required

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        with pytest.raises(DataError, match=r"keys\.json"):
            KeyFile(tmp_path / "keys.json").add(["read"])

    def test_a_bucket_refills(self) -> None:
        bucket = Bucket(rate=2.0, burst=3, most=2)
        assert [bucket.wait_s("a", 0.0) for _ in range(4)] == [0, 0, 0, 0.5]
        assert bucket.wait_s("a", 0.5) == 0
        assert bucket.wait_s("b", 0.5) == 0
        assert bucket.wait_s("a", 100.0) == 0
        assert [bucket.wait_s(name, 100.0) for name in "cde"] == [0, 0, 0]
        assert len(bucket._tokens) == 2
        assert [Bucket(0.0, 1).wait_s("a", 0.0) for _ in range(3)] == [0, 0, 0]
