"""Wrong input: one line says what, where and what would be accepted, and the status is 2."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from sa_atp.basics.words import join, plural
from sa_atp.cli import main
from sa_atp.lab.plans import plan_files
from sa_atp.switches import artefacts

from .conftest import sa_atp

MEMBER = ["--member", "0=10.0.0.1:40000,02:00:0a:00:00:01,1"]
PS = "10.0.0.9:21313,02:00:0a:00:00:09,3"
BAD_IP, BAD_MAC, BAD_PORT = "10.0.0.999:1,02:00:0a:00:00:09,3", "10.0.0.9:1,02:00,3", "10.0.0.9:0,02:00:0a:00:00:09,3"
BAD_PLACE, HIGH = "0=10.0.0.1:1,02:00:0a:00:00:01,999", "99=10.0.0.1:1,02:00:0a:00:00:01,9"
HOST = "IP:UDP_PORT,MAC,SWITCH_PORT"
PROGRAM = str(artefacts.program(64).json_path)


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that fails with status 2. Returns: its line on standard error."""
    assert main(words) == 2, words
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[:8]) == ("", 1, "sa-atp: ")
    return err[8:-1]


TRAINS = pytest.mark.needs("torch", "sklearn")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["deploy", "--target", "embedded", "--grpc", "foo"], "P4Runtime address 'foo': expected HOST:PORT"),
        (["run", "demo", "--cli", "--backend", "local"],
         "Mininet's prompt: the backend is local, and only mininet has"),
        (["run", "demo", "--cli", "--json"],
         "--cli: a run of one point, without --json: standard output is the prompt's"),
        (["run", "demo", "--metrics", "127.0.0.1:1", "--backend", "sim"], "--metrics: a run in virtual time has no"),
        (["switch", "--metrics", "9464", "--grpc", "127.0.0.1:0"], "--metrics 9464: expected HOST:PORT, for example"),
        (["watch", "--every", "0"], "--every 0: expected a number of seconds from 0.05 on"),
        (["params", "--listen", "127.0.0.1:99999"],
         "address '127.0.0.1:99999': expected HOST or HOST:PORT, with a port"),
        (["up", "--listen", "127.0.0.1:x"],
         "address '127.0.0.1:x': expected HOST or HOST:PORT, with a port of 0 to 65535"),
        (["job", "list", "--grpc", "127.0.0.1:99999"], "P4Runtime address '127.0.0.1:99999': expected"),
        (["deploy", "--target", "embedded", "--grpc", "a..b:9559"], "--grpc a..b:9559: the host 'a..b' is not known"),
        (["job", "list", "--grpc", ":9559"], "P4Runtime address ':9559': expected HOST:PORT"),
        (["job", "list", "--timeout", "nan"], "timeout nan: expected a positive number of seconds"),
        (["job", "list", "--device-id", "-1"], "device id -1: expected 0 to 2**64 - 1"),
        (["deploy", "--target", "embedded", "--program", "nowhere"], "nowhere: no such folder; expected one with"),
        (["deploy", "--target", "embedded", "--lanes", "5"], "no such build of the P4 program; there is 32, 64"),
        (["job", "add", "1", *MEMBER, "--ps", "10.0.0.9"], f"--ps 10.0.0.9: expected {HOST}"),
        (["job", "add", "1", *MEMBER, "--ps", BAD_IP], f"--ps {BAD_IP}: ip '10.0.0.999': expected an IPv4 a"),
        (["job", "add", "1", *MEMBER, "--ps", BAD_MAC], f"--ps {BAD_MAC}: mac '02:00': expected six bytes"),
        (["job", "add", "1", *MEMBER, "--ps", PS, "--uplink", BAD_PORT], f"--uplink {BAD_PORT}: udp_port 0: exp"),
        (["job", "add", "1", "--member", BAD_PLACE, "--ps", PS], f"--member {BAD_PLACE[2:]}: switch_port 999: exp"),
        (["job", "add", "1", "--member", HIGH, "--ps", PS], "--fan-in: required where no member"),
        (["deploy", "--target", "bmv2", "--lanes", "64", "--contributions", "65"],
         "--contributions 65: expected 1 to 64 with 64 lanes (512 with 256)"),
        (["deploy", "--target", "bmv2", "--program", ".", "--contributions", "65"], "--contributions chooses one of"),
        (["switch", "--lanes", "256", "--contributions", "513"],
         "--contributions 513: expected 1 to 512 with 256 lanes"),
        (["ps", "--contributions", "0"], "--contributions 0: expected 1 to 64 with 2048 lanes"),
        (["up", "--contributions", "513", "--", "true"], "513 contributions: expected at most 512"),
        (["switch", "--grpc", "127.0.0.1:99999"], "P4Runtime address '127.0.0.1:99999': expected HOST:PORT"),
        (["switch", "nowhere", "--grpc", "127.0.0.1:0"], "nowhere: no such folder"),
        (["switch", "--cpu-port", "1", "--udp", "1=127.0.0.1:0"], "port 1 is given twice"),
        (["switch", "--udp", "1=127.0.0.1:0", "--pcap", "/dev/null/x"], "cannot make the folder /dev/null/x: Not a"),
        (["switch", "--udp", "1=192.0.2.1:0"], "cannot use UDP address 192.0.2.1:0: Cannot assign requested address"),
        (["ps", "--listen", "a..b"], "address 'a..b': the host 'a..b' is not known"),
        (["switch", "--udp", "1=a..b:0"], "address 'a..b:0': the host 'a..b' is not known"),
        (["switch", "--udp", "1=127.0.0.1:99999"],
         "address '127.0.0.1:99999': expected HOST or HOST:PORT, with a port of"),
        (["ps", "--slots", "8192"], "--slots 8192: expected a power of two, at most 4096"),
        (["ps", "--slots-per-job", "3"], "--slots-per-job 3: expected a power of two"),
        (["ps", "--dead-after", "inf"], "--dead-after inf: expected a positive number of seconds"),
        (["ps", "--dead-after", "-1"], "--dead-after -1: expected a positive number of seconds"),
        (["ps", "--grpc", "foo"], "P4Runtime address 'foo'"),
        (["ps", "--host-port", "10.0.0.1=1"], "--host-port needs --grpc"),
        (["ps", "--grpc", "127.0.0.1:9", "--host-port", "x=1"], "--host-port x=1: expected IP=PORT"),
        (["ps", "--grpc", "127.0.0.1:9", "--port", "999"], "--port 999: expected 0 to 510"),
        (["up", "--dead-after", "inf", "--", "true"], "--dead-after inf: expected a positive number of seconds"),
        (["up", "--pcap", "/dev/null/x", "--", "true"], "cannot make the folder /dev/null/x: Not a"),
        (["up", "--listen", "192.0.2.1:5"], "--listen 192.0.2.1:5: Cannot assign requested address"),
        (["dissect", "/dev/null", "--job", "999"], "--job 999: expected 0 to 255"),
        (["up", "--workers", "0"], "--workers 0: expected 1 to 64"),
        (["up", "--slots", "3"], "--slots 3: expected a power of two, at most 4096"),
        (["up", "--job", ""], "--job '': expected a name of 1 to 64 characters"),
        (["up", "--listen", "nowhere"], "the host 'nowhere' is not known"),
        (["up", "--json", "--", "true"], "--json: standard output belongs to the command"),
        (["up", "--", "no-such-program"], "no-such-program: no such program on PATH"),
        (["soak", "--seeds", "0"], "--seeds 0: expected 1 to 10000000"),
        (["soak", "--first", "-1"], "--first -1: expected 0 to "),
        (["soak", "--minutes", "nan"], "--minutes nan: expected a positive number"),
        (["soak", "--minutes", "0"], "--minutes 0: expected a positive number"),
        (["soak", "--jobs", "0"], "--jobs 0: expected 1 to 256"),
        (["bench", "loss", "--workers", "1"], "--workers 1: expected 2 to 64"),
        (["bench", "loss", "--mbytes", "0"], "--mbytes 0.0: expected"),
        (["bench", "loss", "--iterations", "0"], "--iterations 0: expected at least 1"),
        (["bench", "loss", "--loss", "0", "1"], "--loss 1.0: expected 0 to less than 1"),
        (["bench", "loss", "--link-mbps", "0"], "--link-mbps 0.0: expected more than 0"),
        (["bench", "loss", "--delay-us", "-1"], "--delay-us -1: expected 0 or more"),
        (["bench", "allreduce", "--workers", "1"], "--workers 1: expected 2 to"),
        (["bench", "allreduce", "--iterations", "0"], "--iterations 0: expected at least 1"),
        (["bench", "allreduce", "--link-mbps", "100"], "the rate of loopback cannot be limited"),
        (["bench", "allreduce", "--switch", "bmv2"], "BMv2 needs interfaces"),
        (["bench", "allreduce", "--figure", "x.png"], "add --sizes"),
        (["bench", "scale", "--workers", "4,x"], "--workers x: expected whole numbers from 2 to 4096"),
        (["bench", "scale", "--policies", "gloo"], "policy 'gloo' has no sums"),
        (["bench", "scale", "--steps", "4"], "--steps 4: expected more than 4"),
        (["bench", "switch", "--packets", "0"], "--packets 0: expected at least 1"),
        (["bench", "switch", "--cores", "5"], "--cores 5: expected 1 to 4"),
        (["reproduce", "--only", "nothing"],
         "--only nothing: expected one of sa-atp, falcon, boa, boa-thesis, trio-ml, protocols"),
        (["reproduce", "--seeds", "0"], "--seeds 0: expected 1 to 100"),
        (["reproduce", "--seed", "-1"], "--seed -1: expected 0 to"),
        (["reproduce", "--steps", "3"], "--steps 3: expected at least 4"),
        (["reproduce", "--jobs", "0"], "--jobs 0: expected at least 1"),
        pytest.param(["reproduce", "--out", "/dev/null/page"], "/dev/null/page: cannot be written", marks=TRAINS),
        (["run", "demo", "--backend", "local", "--jobs", "2"], "--jobs is for --backend sim"),
        (["run", "sweep-slots", "--backend", "local", "--jobs", "2"], "--jobs is for --backend sim"),
        (["run", "sweep-slots", "--backend", "local", "--scheduler", "tcp://127.0.0.1:1"],
         "--scheduler is for --backend sim"),
        (["run", "demo", "--backend", "sim", "--jobs", "-1"], "--jobs -1: expected at least 1"),
        (["run", "sweep-slots", "--backend", "sim", "--jobs", "0"], "--jobs 0: expected at least 1"),
        (["map", "demo", "--x", "speed=1,2"],
         "--x speed: expected a key of plans, like topology.workers, or one of workers, severity"),
        (["map", "demo", "--x", "severty"], "(did you mean severity?)"),
        (["map", "demo", "--x", "straggler.slow=1,2"], "straggler.slow"),
        (["map", "demo", "--x", "severity=1"], "--x severity: 1 values: expected 2 to 32, for example severity=1,2,4"),
        (["map", "demo", "--x", "severity=2,2"], "--x severity: a value is there twice"),
        (["map", "demo", "--x", "severity=1,?"], "--x severity=1,?: expected NAME=VALUE,VALUE,..."),
        (["map", "demo", "--x", "severity=0.5,1"], "severity = 0.5: straggler.slowdown = 0.5: expected 1.0 to 1000.0"),
        (["map", "demo", "--x", "severity=a,b"], "severity = 'a': expected a number"),
        (["map", "demo", "--y", "severity=1,2"], "--y severity: expected another axis than --x"),
        (["map", "demo", "--y", "static"], 'static = 0: expected a plan with straggler.pattern = "random"'),
        (["map", "demo", "--y", "workers=1.5,2"], "workers = 1.5: expected a whole number of workers"),
        (["map", "demo", "--y", "compute-to-send=0,1"], "compute-to-send = 0: expected more than 0"),
        (["map", "demo", "--set", "straggler.pattern=none"], "straggler.pattern = 'none' has no severity"),
        (["map", "demo", "--seeds", "0"], "--seeds 0: expected 1 to 100"),
        (["map", "demo", "--x", "severity=1,2", "--y", "workers=4,5", "--jobs", "0"], "--jobs 0: expected at least 1"),
        (["map", "demo", "--to-accuracy", "--set", "job.model=resnet-50"],
         "job.model = 'resnet-50' is not trained: it has no accuracy"),
        (["map", "demo", "--set", 'run.policies=["atp"]'], "run.policies: expected two or more"),
        pytest.param(["map", "demo", "--x", "loss=0,0.1", "--y", "workers=4,5", "--set", 'run.policies=["atp","ssp"]'],
                     "ssp: simulated without packets that could be lost", marks=TRAINS),
        (["plot", "."], "it has no run.json"),
        (["run", "/"], "/: a folder, not a plan file; the project's own plans are boa, "),
        (["run", "x" * 300], ": no such file; the project's own plans are boa, "),
    ],
)  # fmt: skip
def test_options(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if words[0] in ("ps", "switch"):  # whose own addresses are not what is wrong
        words = [
            *words[:1],
            *{"ps": ["--listen", "127.0.0.1:0"], "switch": ["--grpc", "127.0.0.1:0"]}[words[0]],
            *words[1:],
        ]
    assert message in refused(words, capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[run]\n# \xff", "not text in UTF-8: byte 0xff at 8"),
        (b"x = " + b"[" * 100_000, "not TOML: "),
        (b"[run]\nsteps = " + b"9" * 5_000, "not TOML: "),
        (b"run = 3", "run must be a table"),
        (b"", "run.steps = 0: expected 1 to 100000"),
        (b"\xef\xbb\xbf[job]\n", "run.steps = 0: expected 1 to 100000"),  # as some editors begin a file
    ],
)
def test_plans(content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_bytes(content)
    assert refused(["run", str(plan), "--set", "run.steps=0"], capsys).startswith(f"{plan}: {message}")


@pytest.mark.parametrize(
    ("switch", "message"),
    [
        ({"grpc": "foo"}, "grpc: P4Runtime address 'foo': expected HOST:PORT"),
        ({"hosts": {"h1": 1}}, "'h1': expected an IPv4 address"),
        ({"hosts": {"10.0.0.1": 511}}, "ports must be whole numbers from 0 to 510"),
        ({"hosts": {"10.0.0.1": True}}, "ports must be whole numbers from 0 to 510"),
        ({"macs": {"h1": "02:00:00:00:00:01"}}, "'h1': expected an IPv4 address"),
        ({"device_id": -1}, "expected a device_id of 0 to"),
        ({"device_id": True}, "device_id = True: expected a int"),
        ({"mark_above": -1}, "and mark_above of 0 to"),
    ],
)
def test_files_of_switches(
    switch: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "switches.json"
    file.write_text(json.dumps({"switches": [{"grpc": "127.0.0.1:9", **switch}]}))
    said = refused(["ps", "--listen", "127.0.0.1:0", "--switches", str(file)], capsys)
    assert said.startswith(f"{file}: switches[0]: ")
    assert message in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "not text in UTF-8: byte 0xff at 0"),
        (b"[" * 100_000, "not JSON ("),
        (b"{}", "job: the key job is missing"),
    ],
)
def test_files_of_jobs(content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.json"
    file.write_bytes(content)
    assert message in refused(["job", "add", "--file", str(file)], capsys)


def test_members_of_a_job_in_a_file_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = {"ip": "10.0.0.1", "udp_port": 1, "mac": "02:00:00:00:00:01", "switch_port": 1}
    spec = {
        "job": 1, "epoch": 0, "fan_in": "0x1", "slot_base": 0, "slot_count": 1, "group": 1, "ttl_ticks": 1,
        "level": "root", "members": [{**host, "rank": 0}], "parameter_server": {**host, "ip": "x"}, "uplink": host,
    }  # fmt: skip
    file = tmp_path / "job.json"
    file.write_text(json.dumps(spec))
    assert refused(["job", "add", "--file", str(file)], capsys) == "parameter_server: ip 'x': expected an IPv4 address"
    file.write_text(json.dumps({**spec, "members": [{**host, "rank": 0, "mac": 3}]}))
    assert refused(["job", "add", "--file", str(file)], capsys).startswith("members[0]: mac 3: expected six bytes")


@TRAINS
def test_a_topology_file_is_looked_at_before_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = {f"h{n}": {"ip": f"10.0.0.{n}"} for n in (1, 2)}
    links = [["h1", "s1-p1"], ["h2", "s1-p1"]]
    (tmp_path / "net.json").write_text(json.dumps({"hosts": hosts, "switches": {"s1": {}}, "links": links}))
    plan = tmp_path / "plan.toml"
    plan.write_text('[topology]\nkind = "file"\nfile = "net.json"\nworkers = 2\n[straggler]\nworkers = [1]\n')
    said = refused(["run", str(plan), "--backend", "mininet", "--out", str(tmp_path / "out")], capsys)
    assert said == (
        f"{tmp_path}/net.json: links[1]: port 1 of s1 is an end of links[0] already: expected a port that is free"
    )
    assert not (tmp_path / "out").exists()


def test_a_message_about_a_list_suggests_valid_syntax() -> None:
    for override in ('run.policies=["atp", "boa"]', "job.speeds=[1, 1, 1, 1]"):
        plan_files.parse("", "plan.toml", [override])
    plan_files.parse("", "plan.toml", ["ssp.bound=1", 'run.policies=["ssp"]'])  # in whatever order
    plan_files.parse("[sync-opt]\nbackups = 3\n", "plan.toml", ["topology.workers=2", "straggler.workers=[]"])  # unused


def test_grpc_says_nothing_itself() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = sa_atp("switch", "none", "--grpc", address, environment={"GRPC_VERBOSITY": ""})
    assert done.returncode == 2
    assert done.stderr == (
        f"sa-atp: P4Runtime: cannot listen on {address}: expected HOST:PORT of this machine, not in use\n"
    )


def test_words_for_numbers() -> None:
    assert [plural(n, "packet") for n in (0, 1, 2)] == ["0 packets", "1 packet", "2 packets"]
    assert [plural(n, "switch", "switches") for n in (1, 3)] == ["1 switch", "3 switches"]
    assert [join("abc"[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_one_packet_is_no_packets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = tmp_path / "one.stf"
    test.write_text("packet 1 00\n")
    assert main(["stf", PROGRAM, str(test)]) == 0
    assert capsys.readouterr().out == f"pass: {test} on embedded: 1 packet in, 0 out, 0 expected\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cores", "0"], "--cores 0: expected 1 to 2: each core needs a port, and the switch has 2"),
        (["--cores", "3"], "--cores 3: expected 1 to 2: "),
        (["--cores", "2", "--plain"], "--cores 2: --plain works only with --cores 1"),
        (["--cores", "2", "--impair", "1:loss=0.1"], "--cores 2: --impair works only with --cores 1"),
    ],
)
def test_cores_of_a_switch(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    ports = ["--udp", "1=127.0.0.1:0", "--udp", "2=127.0.0.1:0"]
    assert refused(["switch", *ports, *arguments], capsys).startswith(message)


@pytest.mark.parametrize("command", [["help", "--only", "20M, one slow"], ["scale", "--workers", "4"]])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    said = refused(["bench", *command, "--out", str(file / "below")], capsys)
    assert said.startswith(f"cannot make the folder {file}/below: ")
