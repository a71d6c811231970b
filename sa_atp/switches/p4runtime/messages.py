"""P4Runtime's message classes, for any version of protobuf from 3.20 on.

The package `p4runtime` on PyPI has Python code from an old protobuf compiler, which protobuf 4 and newer refuse to import.
Message descriptors work with every version: `p4runtime.binpb` has those of p4runtime 1.4.1 as a FileDescriptorSet, written
by tests/switches/p4runtime/descriptors.py, and protobuf makes the classes when this module is imported.

The classes are in a descriptor pool of their own, so the process may import `p4.v1.p4runtime_pb2`, too. Each namespace has
the classes of one file, and the name of the module that protobuf would generate.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FILES = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("p4runtime.binpb").read_bytes())
_POOL = descriptor_pool.DescriptorPool()
for _file in _FILES.file:  # each comes after those that it imports
    _POOL.AddSerializedFile(_file.SerializeToString())


def class_maker(pool: Any) -> Callable[[Any], Any]:
    """The function of the installed protobuf that makes a message class from its descriptor in a pool."""
    # protobuf 4.22 has the first, protobuf 5 no longer the second
    found: Callable[[Any], Any] | None = getattr(message_factory, "GetMessageClass", None)
    return found or message_factory.MessageFactory(pool).GetPrototype


_class_of = class_maker(_POOL)


def _namespace(name: str) -> SimpleNamespace:
    messages = _POOL.FindFileByName(name).message_types_by_name
    return SimpleNamespace(**{message: _class_of(descriptor) for message, descriptor in messages.items()})


any_pb2 = _namespace("google/protobuf/any.proto")
status_pb2 = _namespace("google/rpc/status.proto")
p4info_pb2 = _namespace("p4/config/v1/p4info.proto")
p4data_pb2 = _namespace("p4/v1/p4data.proto")
p4runtime_pb2 = _namespace("p4/v1/p4runtime.proto")

SERVICE = "p4.v1.P4Runtime"


def methods() -> Iterator[tuple[str, Any, Any, bool, bool]]:
    """Name, request class, answer class, and whether request and answer are streams, for each call of the service."""
    [service] = [service for file in _FILES.file for service in file.service]
    for method in service.method:
        asked, answered = (
            getattr(p4runtime_pb2, name.rpartition(".")[2]) for name in (method.input_type, method.output_type)
        )
        yield method.name, asked, answered, method.client_streaming, method.server_streaming
