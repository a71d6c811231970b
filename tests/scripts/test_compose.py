"""docker-compose.yml and Dockerfile: the files are valid, and the containers' commands work as plain processes."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sa_atp.basics import needs
from sa_atp.cli import build_parser, main
from sa_atp.lab.runs.processes import Group

from .conftest import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: scripts/test sets it up")

READY_S = 120.0
OTHERS = ("prometheus", "grafana")  # images of other projects
# Hosts of the composed network, as addresses of this one.
HOSTS = {"switch": "127.77.0.2", "ps": "127.77.0.3"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def stages() -> dict[str, str]:
    """Text of each stage of the Dockerfile."""
    parts = re.split(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_services(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"switch", "ps", "worker", "testbed", *OTHERS}
    for name, service in compose["services"].items():
        volumes = [volume.partition(":")[0] for volume in service.get("volumes", [])]
        assert all(source.startswith("./") or source in compose["volumes"] for source in volumes)
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        if name in OTHERS:
            assert service["profiles"] == ["metrics"]
            assert all(port.startswith("127.0.0.1:") for port in service["ports"])  # for this machine alone
            assert all((ROOT / source).is_file() for source in volumes)
            continue
        assert service["build"]["target"] in stages()
        if name == "testbed":
            assert service["profiles"] == ["testbed"]  # not among what `docker compose up` starts
        else:
            assert (service.get("privileged"), service["cap_drop"], service.get("network_mode")) == (
                None,
                ["ALL"],
                None,
            )


def test_contents_of_the_images(compose: dict[str, Any]) -> None:
    assert set(stages()) == {"wheel", "sa-atp", "testbed"}
    [call] = re.findall(r"bash -c 'source (\S+) && setup_mininet && setup ([\w ]+)'", stages()["testbed"])
    assert (ROOT / call[0]).is_file()
    [extras] = re.findall(r"/wheels/\*\.whl\)\[([\w,]+)\]", stages()["sa-atp"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*extras.split(","), *call[1].split()} <= set(project["optional-dependencies"])
    assert needs.TORCH_INDEX in stages()["sa-atp"]
    assert f"ENV {needs.IMAGE}=sa-atp " in stages()["sa-atp"]
    assert "FROM p4lang/p4c:latest AS testbed" in (ROOT / "Dockerfile").read_text()
    # nothing that belongs to this machine gets into an image
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "runs"} <= set(ignored)


@pytest.mark.parametrize("name", ["switch", "ps"])
def test_commands_can_be_parsed(name: str, compose: dict[str, Any]) -> None:
    assert '["sa-atp"]' in stages()["sa-atp"]  # the entry point that these are arguments of
    build_parser().parse_args(compose["services"][name]["command"])
    if "healthcheck" in compose["services"][name]:
        kind, program, *arguments = compose["services"][name]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "sa-atp")
        build_parser().parse_args(arguments)


@pytest.mark.needs("docker")
def test_the_client_accepts_it() -> None:
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker compose is not installed: apt-get install docker-compose-plugin, of Docker's repository")
    done = subprocess.run(
        ["docker", "compose", "--profile", "testbed", "--profile", "metrics", "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class Network:
    """Names and ports of the compose file, as addresses of this machine where nobody listens."""

    def __init__(self) -> None:
        self._ports: dict[str, int] = {}

    def place(self, word: str) -> str:
        """A word of a command line, with every HOST:PORT replaced."""
        return re.sub(r"\b(switch|ps):(\d+)", lambda match: self.address(match[1], match[2]), word)

    def address(self, host: str, port: str) -> str:
        name = f"{host}:{port}"
        if name not in self._ports:
            kind = socket.SOCK_STREAM if port in ("9559", "9464") else socket.SOCK_DGRAM
            with socket.socket(socket.AF_INET, kind) as probe:
                probe.bind((HOSTS[host], 0))
                self._ports[name] = probe.getsockname()[1]
        return f"{HOSTS[host]}:{self._ports[name]}"


@pytest.mark.needs("prometheus_client")
def test_the_containers_as_processes(
    compose: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    services = compose["services"]
    network = Network()
    environment = {name: network.place(value) for name, value in services["worker"]["environment"].items()}
    assert environment["SA_ATP_WORLD_SIZE"] == "${WORKERS:-4}" == services["worker"]["deploy"]["replicas"]
    environment.update(SA_ATP_WORLD_SIZE="2", SUMS="3", VALUES="40000", RANKS=str(tmp_path / "ranks"))
    (tmp_path / "ranks").mkdir()
    [take_rank], [_, *worker] = services["worker"]["entrypoint"], services["worker"]["command"]
    with Group() as group:
        for name in ("switch", "ps"):
            words = [network.place(word) for word in services[name]["command"]]
            process = group.start(name, ["sa_atp", *words], tmp_path / f"{name}.log")
            assert process.answer(READY_S)["ready"]
            if "healthcheck" in services[name]:
                assert main([network.place(word) for word in services[name]["healthcheck"]["test"][2:]]) == 0
        workers = [
            subprocess.Popen(
                [ROOT / take_rank, sys.executable, *worker],
                cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        said = [process.communicate(timeout=READY_S) for process in workers]
        assert [process.returncode for process in workers] == [0, 0], said
        assert sorted(out.split(":")[0] for out, _ in said) == ["rank 0", "rank 1"]
        assert all(out.endswith(" 0 wrong\n") for out, _ in said)

        # the switch did the sums: the parameter server only kept what it heard
        capsys.readouterr()
        server = "udp://" + network.place("ps:21313")
        assert main(["doctor", "--server", server, "--json"]) == 0
        [job] = json.loads(capsys.readouterr().out)["jobs"]
        assert (job["name"], job["state"], job["world_size"]) == ("compose", "ended", 2)

        # what Prometheus is to scrape
        [scraped] = yaml.safe_load((ROOT / "docker/prometheus.yml").read_text())["scrape_configs"]
        for target in scraped["static_configs"][0]["targets"]:
            with urllib.request.urlopen(f"http://{network.place(target)}/metrics") as answer:
                text = answer.read().decode()
            name = target.partition(":")[0]
            own = 'sa_atp_job_world_size{job_name="compose"' if name == "ps" else 'event="completed"'
            assert own in text, name


def test_ranks_are_taken_once(tmp_path: Path) -> None:
    command: list[str | Path] = [ROOT / "docker" / "take-rank", "sh", "-c", 'echo "$SA_ATP_RANK"; read -r _']
    environment = {**os.environ, "RANKS": str(tmp_path), "SA_ATP_WORLD_SIZE": "2"}

    def start() -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def rank_of(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    first, second = start(), start()
    assert {rank_of(first), rank_of(second)} == {"0\n", "1\n"}
    third = start()
    _, said = third.communicate(timeout=20)
    assert third.returncode == 1
    assert "take-rank: all 2 ranks are taken" in said
    first.communicate("\n", timeout=20)
    fourth = start()  # whoever leaves makes room
    assert rank_of(fourth) in ("0\n", "1\n")
    for process in (second, fourth):
        process.communicate("\n", timeout=20)
