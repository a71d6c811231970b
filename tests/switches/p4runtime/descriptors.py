"""The descriptors of P4Runtime's messages, from the package `p4runtime` and protobuf.

python -m tests.switches.p4runtime.descriptors           writes sa_atp/switches/p4runtime/p4runtime.binpb
python -m tests.switches.p4runtime.descriptors --check   fails if it is not what would be written

Needs the package `p4runtime`, of the version that sa_atp/switches/p4runtime/messages.py names: the extra `shell` has it.
"""

import os
import sys
from pathlib import Path

os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"  # the only one that imports the package with protobuf 4

FILE = Path(__file__).resolve().parents[3] / "sa_atp" / "switches" / "p4runtime" / "p4runtime.binpb"


def found() -> bytes:
    from google.protobuf import any_pb2, descriptor_pb2
    from google.rpc import status_pb2
    from p4.config.v1 import p4info_pb2, p4types_pb2
    from p4.v1 import p4data_pb2, p4runtime_pb2

    files = descriptor_pb2.FileDescriptorSet()
    for module in (any_pb2, status_pb2, p4types_pb2, p4info_pb2, p4data_pb2, p4runtime_pb2):
        files.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    written: bytes = files.SerializeToString(deterministic=True)
    return written


def main(arguments: list[str]) -> int:
    if arguments != ["--check"]:
        FILE.write_bytes(found())
        return 0
    if FILE.read_bytes() != found():
        print(
            f"{FILE} is not what the package p4runtime says: python -m tests.switches.p4runtime.descriptors writes it"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
