"""Plans that cannot be run: one line says what, where and what would be accepted, before anything begins."""

from pathlib import Path

import pytest

from sa_atp.cli import main

# The demo trains; what a backend cannot do is refused after the packages for that have been found.
pytestmark = pytest.mark.needs("torch", "sklearn")

ON_A_SERVER = 'run.policies=["ssp", "asp", "flexrr", "consgd", "dynsgd", "falcon"]'
BOA = (
    'run.policies=["boa"]',
    "topology.workers=3",
    "job.batch_size=34",
    "job.micro_batches=17",
    "straggler.workers=[2]",
)
SYNC_OPT = ('run.policies=["sync-opt"]', "straggler.workers=[]")
TRACE = "straggler.pattern=trace"
ONE_EACH = "[1, 1, 1, 1]"
NO_BUILD = "there is no such build; there are 512 with 256 lanes, for embedded and bmv2"
NO_BMV2 = "cannot do switch.program = 'bmv2': use --switch embedded, or --backend mininet"


@pytest.mark.parametrize(
    ("backend", "overrides", "says"),
    [
        # values that a key does not take
        ("sim", ['run.policies=["atp", "atb"]'], "run.policies = 'atb': expected one of 'atp', 'sa-atp', "),
        ("sim", ["straggler.pattern=pauses"], "straggler.pattern = 'pauses': expected one of 'none', 'constant'"),
        ("sim", ["topology.workers=one"], "topology.workers = 'one': expected a whole number"),
        ("sim", ["help.grad=steal"], "unknown key help.grad (did you mean grade?)"),
        ("sim", ["job.bits=8"], "job.bits = 8: expected one of 32, 16"),
        ("sim", ["job.speeds=[1.0, 0.5]"], "job.speeds has 2 speeds for 4 workers"),
        ("sim", ["job.speeds=[1.0, 0.5, 1.0, 0.0]"], "job.speeds = 0.0: expected 0.001 to 1000.0"),
        ("sim", ["straggler.probability=1.5"], "straggler.probability = 1.5: expected 0.0 to 1.0"),
        ("sim", ["straggler.pause_range=[2.0, 0.5]"],
         "straggler.pause_range = [2.0, 0.5]: expected two numbers, the smaller"),
        ("sim", ["straggler.spell_s=[1.0]"], "straggler.spell_s = [1.0]: expected two numbers, the smaller first"),
        ("sim", ["straggler.share=0.0"], "straggler.share = 0.0: expected 0.001 to 1.0"),
        ("sim", ["straggler.workers=[4]"], "straggler.workers names 4, but topology.workers = 4"),
        ("sim", ["straggler.from_step=4", "straggler.until_step=4"],
         "straggler.until_step = 4: expected more than from_step = 4, or 0 for no end"),
        ("sim", [TRACE], 'straggler.pattern = "trace" needs straggler.trace, a CSV or JSON file'),
        ("sim", [TRACE, "straggler.rows=[[0, 9, 2.0]]"], "row 1, worker: 9 of topology.workers = 4"),
        ("sim", [TRACE, "straggler.rows=[[0, 1]]"], "row 1: expected [step, worker, slowdown]"),
        ("sim", [TRACE, "straggler.rows=[[0, 1, 2], [0, 1, 3]]"], "row 2: step 0 of worker 1 occurs twice"),
        # settings of policies
        ("sim", [ON_A_SERVER, "ssp.bound=-1"], "ssp.bound = -1: expected 0 to"),
        ("sim", [ON_A_SERVER, "ssp.bund=1"], "unknown key ssp.bund (did you mean bound?); [ssp] has "),
        ("sim", [ON_A_SERVER, "dynsgd.learning_rate=fast"], "dynsgd.learning_rate = 'fast': expected a number"),
        ("sim", [ON_A_SERVER, "falcon.sync=sometimes"],
         "falcon.sync = 'sometimes': expected one of 'enforced', 'slack'"),
        ("sim", [ON_A_SERVER, "flexrr.helpers=-1"], "flexrr.helpers = -1: expected 0 to"),
        ("sim", [ON_A_SERVER, "job.parallel_gain=[1,2,3]"],
         "job.parallel_gain = [1.0, 2.0, 3.0]: expected the throughput with 1, 2, 4 and 8"),
        ("sim", [ON_A_SERVER, "job.parallel_gain=[1,2,4,9]"], "each at most so many times"),
        ("sim", [ON_A_SERVER, f"job.worker_parallel_gain=[{ONE_EACH}]"],
         "job.worker_parallel_gain has 1 row for 4 workers"),
        ("sim", [ON_A_SERVER, f'job.worker_parallel_gain=[{ONE_EACH}, ["a", 1, 1, 1], {ONE_EACH}, {ONE_EACH}]'],
         "four numbers"),
        ("sim", [ON_A_SERVER, "job.worker_parallel_gain=[1,1,1,1]"], "job.worker_parallel_gain = 1: expected a list"),
        ("sim", [ON_A_SERVER, "job.parallel=9"], "job.parallel = 9: expected 1 to 8"),
        ("sim", ["job.parallel=2"], "job.parallel = 2: policy atp computes one "),
        ("sim", [*BOA, "boa.least=35"], "policy boa: a global batch of 102 samples cannot be dealt: "),
        ("sim", [*BOA, "boa.most=33"], " take 3 to 99"),
        ("sim", [*BOA, "boa.granularity=4"], "policy boa: a global batch of 102 samples cannot be dealt in units of 4"),
        ("sim", [*BOA, "boa.granularity=0"], "boa.granularity = 0: expected 1 to"),
        ("sim", [*BOA, "boa.least=-1"], "boa.least = -1: expected 0 to"),
        ("sim", ['run.policies=["deadline"]', "deadline.least=5"],
         "deadline.least = 5: expected 0 to 4 (topology.workers)"),
        ("sim", ['run.policies=["x-of-n"]', "x-of-n.x=5"], "x-of-n.x = 5: expected 1 to 4 (topology.workers), or 0"),
        ("sim", ['run.policies=["x-of-n"]', "x-of-n.x=-1"], "x-of-n.x = -1: expected 0 to "),
        ("sim", ['run.policies=["saina"]', "saina.first=5"], "saina.first = 5: expected 1 to 4 (topology.workers)"),
        ("sim", [*SYNC_OPT, "sync-opt.backups=2"], "sync-opt.backups = 2 "),
        ("sim", [*SYNC_OPT, "sync-opt.backups=1", "topology.workers=2"], " expected fewer backups"),
        ("sim", [*SYNC_OPT, "sync-opt.backups=1", "topology.workers=1"], " expected fewer backups"),
        ("sim", [*SYNC_OPT, "sync-opt.backups=-1"], "sync-opt.backups = -1: expected 0 to 63"),
        *(("sim", [f'run.policies=["{name}"]', "job.bits=16"],
           f"job.bits = 16: policy {name} sends 32 bits; expected 32, or atp, sa-atp")
          for name in ("gloo", "ssp", "sync-opt", "deadline")),
        # what packets, flows, builds and backends cannot do
        ("sim", [ON_A_SERVER, "network.loss=0.1"],
         "ssp, asp, flexrr, consgd, dynsgd, falcon: simulated without packets "),
        ("sim", ["sim.network=flows", "network.loss=0.01"],
         "atp, sa-atp: simulated as flows, without packets that could be lost"),
        ("sim", ["sim.network=flows", "job.bits=16"],
         "atp: job.bits = 16: the flow-level model has gradients of 32 bits"),
        ("sim", ["sim.network=flows", "straggler.by=congestion"],
         "the flow-level model has no congestion in one direction"),
        ("sim", ["sim.network=packets", "topology.workers=8", "switch.lanes=64"],
         "makes 128 contributions; at most 64 fit in the bitmap with switch.lanes = 64 (512 with 256); flows"),
        ("sim", ["sim.network=packets", "topology.workers=64", "switch.lanes=256"],
         "makes 1024 contributions; at most 512 fit in the bitmap with switch.lanes = 256;"),
        ("sim", ["sim.network=packets", "topology.workers=65", "job.micro_batches=4"],
         "topology.workers = 65: a job has at most 64 ranks; flows have no such limit"),
        ("sim", ["switch.contributions=512", "switch.lanes=64"], NO_BUILD),
        ("sim", ["switch.contributions=512", "switch.lanes=2048", "topology.mtu=9000"], NO_BUILD),
        ("sim", ["switch.contributions=512", "switch.lanes=256", "switch.program=tofino-model", "sim.network=packets"],
         NO_BUILD),
        ("local", ["switch.lanes=64", "topology.workers=6"],
         "96 contributions; at most 64 fit in the bitmap with switch.lanes"),
        ("local", ["network.loss=0.5"], "--backend sim"),
        ("local", ["topology.worker_mbps=[20,20,5,5]"], "--backend sim"),
        ("local", ["straggler.pattern=contention", "straggler.workers=[1]"],
         "the local backend has no links, and cannot do straggler.pattern = 'contention'"),
        ("local", ["straggler.by=congestion"], "no links, and cannot do straggler.by = 'congestion'"),
        ("local", ["switch.pcap=true"], "--backend mininet"),
        ("local", ["topology.kind=two-level"], "cannot do topology.kind = 'two-level': use --backend sim or mininet"),
        *((backend, ["topology.kind=file", "topology.file=not-read.json"],
           "cannot do topology.kind = 'file': use --backend mininet") for backend in ("local", "sim")),
        ("sim", ["job.device=cpu"], "cannot do job.device = 'cpu': use --backend mininet"),
        ("sim", ['run.policies=["gloo"]'], "cannot do run.policies = 'gloo': use --backend mininet"),
        ("local", ["switch.program=bmv2"], NO_BMV2),
        ("sim", ["switch.program=bmv2"], NO_BMV2),
        # how lists are written, and keys without effect
        ("sim", ["ssp.bound=1"], """has no effect: [ssp] is for ssp, and run.policies = ["atp", "sa-atp"]"""),
        ("sim", ["boa.least=2"],
         """has no effect: [boa] is for boa and sa-atp+boa, and run.policies = ["atp", "sa-atp"]"""),
        ("sim", ["sweep.key=run.policies", 'sweep.values=[["atp"], ["boa"]]'],
         "demo.toml: sweep.key = 'run.policies': list all policies in run.policies: each point runs them all"),
        ("sim", ["run.policies=[atp,boa]"], """the shell: --set 'run.policies=["atp", "boa"]'"""),
        ("sim", ["straggler.workers=[1,a]"], """the shell: --set 'straggler.workers=[1, "a"]'"""),
        ("sim", ["job.speeds=[.5,1]"], """the shell: --set 'run.policies=["atp", "sa-atp"]'"""),
        ("sim", ["run.policies=atp"], """run.policies = 'atp': expected a list, such as ["atp"]"""),
        ("sim", ["run.policies=1"], """run.policies = 1: expected a list, such as ["atp", "sa-atp"]"""),
        ("sim", ["run.steps=" + "9" * 5_000], "run.steps = '999"),
        ("sim", ["job.speeds=1"], "job.speeds = 1: expected a list, such as [1]"),
    ],
)  # fmt: skip
def test_plans(
    backend: str, overrides: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [word for override in overrides for word in ("--set", override)]
    assert main(["run", "demo", "--backend", backend, "--out", str(tmp_path / "out"), *changes]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err
    assert not (tmp_path / "out").exists()
