"""The protocol: packets, numbers, a rank's side, the parameter server's side, help, batches. No socket, clock or
thread.

Connections are sans-I/O:

    datagrams in ──> connection.receive(bursts, now_us)
    time passes  ──> connection.handle_timer(now_us)        at the time that connection.next_timer_us() names
    datagrams out <── connection.transmit(now_us)            after either of the two, until it returns nothing
    events out    <── connection.next_event()

The same objects run over UDP (net), in the simulator (lab.simulator), and in tests that drop exactly the third packet.
"""
