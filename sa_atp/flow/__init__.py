"""The network as flows: fair shares of links instead of packets, for hundreds of workers in virtual time.

network     links and flows: who gets how much of which link, max-min fair, worked out anew when a flow begins or ends
fabric      a star or a tree of two levels: the links between workers and the parameter server, messages and transfers
"""
