"""All-gather: each rank gets the arrays of all, bit for bit. (protocol section 5.10)"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sa_atp.basics.arrays import ByteRows, Octets
from sa_atp.net.clock import now_us
from sa_atp.net.flat_values import flat_bytes, gathered_like, words_of_bytes
from sa_atp.net.session import Session, Sum, future_of
from sa_atp.protocol.job.membership import Membership


class Gathering(ABC):
    membership: Membership
    _session: Session

    @abstractmethod
    def _wait_for(self, start: Callable[[], Sum | None]) -> Sum | None:
        """Starts an operation, and waits for it."""

    @abstractmethod
    def _call(self, action: Callable[[], None]) -> None:
        """Has the connection's thread do something."""

    @abstractmethod
    def _new_future(self) -> "Future[Any]":
        """Makes a future that the connection's thread completes."""

    def all_gather(self, array: Any) -> Any:
        """Returns the arrays of all ranks in the order of ranks, bit for bit. Every rank must call it in the same order,
        with arrays of the same type and number of values.

        Args: array: np.ndarray of a type of fixed size, or a dense CPU torch.Tensor of any type; any shape. It keeps its
            values.
        Returns: a new array or tensor of the same type, of the shape (world_size, *array.shape).
        Raises: TransportError: what failed, naming the ranks that are missing; UserError: an array that cannot be sent, or
            a job with help, seats, or scattered results.
        """
        found, sum_of = self._gather(array, measured=True)
        self._wait_for(sum_of)
        return found

    def all_gather_async(self, array: Any, *, measured: bool = True) -> "Future[Any]":
        """Like `all_gather`, in the background. The array must not be touched until the future is done.

        Args: measured: whether it counts in `stragglers`. Every rank must say the same.
        """
        found, start = self._gather(array, measured=measured)
        return future_of(start(), found)

    def _gather(self, array: Any, *, measured: bool) -> tuple[Any, Callable[[], Sum | None]]:
        """Returns: the array for the result, and what starts the operation; it does nothing if the array is empty."""
        kind, part = flat_bytes(array)
        found, out = gathered_like(array, self.membership.world_size)
        if not part.size:
            return found, lambda: None

        def start() -> Sum:
            sum_ = self._session.new_gather(kind, part.size, self._new_future(), out=out, measured=measured)
            sum_.array = found
            own = words_of_bytes(part)
            self._call(lambda: self._session.begin_gather(sum_, now_us(), own))
            return sum_

        return found, start

    def begin_gather(self, kind: str, size: int, out: ByteRows, *, measured: bool = True) -> Sum:
        """Starts an all-gather without contributing yet.

        Args: kind: a name of the parts' type; size: bytes of a part; out: uint8[world_size, size], contiguous.
        Raises: as `all_gather`.
        """
        sum_ = self._session.new_gather(kind, size, self._new_future(), out=out, measured=measured)
        self._call(lambda: self._session.begin_gather(sum_, now_us()))
        return sum_

    def contribute_part(self, sum_: Sum, part: Octets) -> None:
        """Gives this rank's part to an all-gather. Args: part: uint8[size]; it must not change until that is done."""
        own = words_of_bytes(part)
        self._call(lambda: self._session.contribute_part(sum_, own, now_us()))
