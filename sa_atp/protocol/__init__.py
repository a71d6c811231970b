"""What travels, and who decides: packets, numbers, a rank, the parameter server, help, batches. No socket, clock or thread.

Connections are sans-I/O:

    datagrams in ──> connection.receive(bursts, now_us)
    time passes  ──> connection.handle_timer(now_us)        when connection.next_timer_us() has come
    datagrams out <── connection.transmit(now_us)            after either of the two, until it returns nothing
    events out    <── connection.next_event()

The same objects run over UDP (net), in the simulator (lab.simulator), and in tests that drop exactly the third packet.
"""
