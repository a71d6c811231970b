"""Parts for one's own Mininet scripts: switches that aggregate, hosts, links, a parameter server. (docs/python.md)

net = Mininet(Star(), switch=EmbeddedSwitch, host=PlainHost, intf=Interface, controller=None)
net.start()
with parameter_server(net, "ps") as server: ...
"""

from sa_atp.lab.backends.mininet.layout import LinkQuality
from sa_atp.lab.backends.mininet.links import LinkPort as Interface
from sa_atp.lab.backends.mininet.nodes import Bmv2Switch, EmbeddedSwitch, PlainHost
from sa_atp.lab.backends.mininet.own_networks import parameter_server

__all__ = ["Bmv2Switch", "EmbeddedSwitch", "Interface", "LinkQuality", "PlainHost", "parameter_server"]
