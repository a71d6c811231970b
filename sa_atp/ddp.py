"""The imports of a DistributedDataParallel script.

from sa_atp.ddp import SaAtpState, sa_atp_hook

model = DistributedDataParallel(model)
model.register_comm_hook(SaAtpState.from_env(), sa_atp_hook)
"""

from sa_atp.basics import needs
from sa_atp.basics.errors import MissingPartError

try:
    import torch.distributed  # noqa: F401
except ImportError:
    raise MissingPartError(f"sa_atp.ddp needs PyTorch: {needs.how_to_install('torch')}") from None

from sa_atp.train.backend import register
from sa_atp.train.ddp_hook import sa_atp_hook
from sa_atp.train.ddp_state import SaAtpState

register()

__all__ = ["SaAtpState", "sa_atp_hook"]
