"""Client arbitration: the connected client with the largest election id is primary, and may write. (section 5)

    a client connects without an id, or with a smaller one than the primary's ──> it is a backup, and is told alone
    a client connects or changes its id, and the largest id changes ──> its client is primary; all are told
    the primary leaves ──> the client with the largest remaining id is primary; all are told

The last rule is BMv2's. (The specification leaves the switch without a primary until a client announces itself again;
then a client that crashed would have to remember the largest id it ever used.) There are no roles.
"""

import threading
from typing import Any, Protocol

from sa_atp.switches.p4runtime.errors import Code, Refusal
from sa_atp.switches.p4runtime.messages import p4runtime_pb2

MOST_STREAMS = 16  # as in BMv2


class ClientStream(Protocol):
    """A client's stream channel."""

    def send(self, message: Any) -> None:
        """Queues a `p4.v1.StreamMessageResponse`; must not block."""


class Arbitration:
    def __init__(self, device_id: int) -> None:
        self.device_id = device_id
        self._ids: dict[ClientStream, int] = {}  # election id of each client; 0: it has none
        self._told: tuple[ClientStream | None, int] = (None, 0)  # the primary that all clients know of, and its id
        self._lock = threading.Lock()

    def update(self, stream: ClientStream, message: Any) -> None:
        """Handles a client that announces itself, or changes its election id.

        Args: message: a `p4.v1.MasterArbitrationUpdate`.

        Raises: Refusal: the stream must be closed with this code.
        """
        if message.device_id != self.device_id:
            raise Refusal(Code.NOT_FOUND, f"there is no device {message.device_id}; this is device {self.device_id}")
        if message.role.id or message.role.name:
            raise Refusal(Code.UNIMPLEMENTED, "roles are not supported: leave the role out")
        election_id = number(message.election_id)
        with self._lock:
            taken = any(other is not stream and known == election_id for other, known in self._ids.items())
            if election_id and taken:
                raise Refusal(Code.INVALID_ARGUMENT, f"election id {election_id} belongs to another client")
            if stream not in self._ids and len(self._ids) >= MOST_STREAMS:
                raise Refusal(Code.RESOURCE_EXHAUSTED, f"{MOST_STREAMS} clients are connected, which is the limit")
            self._ids[stream] = election_id
            self._tell(stream)

    def leave(self, stream: ClientStream) -> None:
        with self._lock:
            if self._ids.pop(stream, None) is not None:
                self._tell(None)

    def primary(self) -> ClientStream | None:
        with self._lock:
            return self._primary()

    def is_primary(self, stream: ClientStream) -> bool:
        return self.primary() is stream

    def check(self, request: Any) -> None:
        """Raises: Refusal: the sender of a write or pipeline is not primary, or the request is for another device."""
        if request.device_id != self.device_id:
            raise Refusal(Code.NOT_FOUND, f"there is no device {request.device_id}; this is device {self.device_id}")
        if request.role_id or request.role:
            raise Refusal(Code.UNIMPLEMENTED, "roles are not supported: leave the role out")
        election_id = number(request.election_id)
        with self._lock:
            primary = self._primary()
            primary_id = 0 if primary is None else self._ids[primary]
        if primary is None:
            raise Refusal(
                Code.PERMISSION_DENIED, "there is no primary client: announce an election id on a stream channel first"
            )
        if election_id != primary_id:
            raise Refusal(
                Code.PERMISSION_DENIED, f"not primary: election id {election_id}, the primary's is {primary_id}"
            )

    def _primary(self) -> ClientStream | None:
        best = max(self._ids, key=self._ids.__getitem__, default=None)
        return best if best is not None and self._ids[best] else None

    def _tell(self, changed: ClientStream | None) -> None:
        primary = self._primary()
        now = (primary, 0 if primary is None else self._ids[primary])
        if now != self._told:
            self._told = now
            listeners = list(self._ids)
        else:
            listeners = [] if changed is None else [changed]
        for stream in listeners:
            stream.send(self._notice(stream, primary))

    def _notice(self, stream: ClientStream, primary: ClientStream | None) -> Any:
        response = p4runtime_pb2.StreamMessageResponse()
        arbitration = response.arbitration
        arbitration.device_id = self.device_id
        if primary is None:
            arbitration.status.code, arbitration.status.message = Code.NOT_FOUND, "there is no primary"
            return response
        primary_id = self._ids[primary]
        arbitration.election_id.high, arbitration.election_id.low = primary_id >> 64, primary_id & ((1 << 64) - 1)
        if stream is primary:
            arbitration.status.code, arbitration.status.message = Code.OK, "this client is primary"
        else:
            arbitration.status.code, arbitration.status.message = Code.ALREADY_EXISTS, "another client is primary"
        return response


def number(election_id: Any) -> int:
    """A `p4.v1.Uint128` as a number."""
    return int(election_id.high) << 64 | int(election_id.low)
