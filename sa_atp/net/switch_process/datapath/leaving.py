"""Sends the packets that leave the pipeline, as messages to the kernel.

Packets of one flow (a port, and the receiver's address) stay in order: an answer that overtook a result would look like a
loss. Consecutive packets of one size become one message, whose parts are heads, and bodies where the pipeline left them: a
body for many receivers exists once.
"""

from typing import TYPE_CHECKING

from sa_atp.net.switch_process.datapath.state import (
    CHANNEL_ABOVE,
    CONTROL,
    CONTROL_LENGTH,
    CONTROL_ROW,
    COST_UNITS,
    FLAGS,
    INTERFACE,
    IOV,
    IOV_COUNT,
    MESSAGE_WORDS,
    MESSAGES,
    NAME,
    NAME_BYTES,
    NAME_ROW,
    NOT_DATAGRAMS,
    OUT_BYTES,
    OUT_CONTROLS,
    OUT_HEADS,
    OUT_MESSAGES,
    OUT_NAMES,
    OUT_PARTS,
    PACKETS_OUT,
    PARTS,
    PUNTED,
    PUNTED_END,
    PUNTS_LOST,
    REFUSED,
    SCRATCH,
    TOO_LONG,
    UNATTACHED,
    WIRE_USED,
)
from sa_atp.switches.embedded.translate.deparsing import HEAD_AT, HEAD_BYTES, HEAD_ROW

if TYPE_CHECKING:
    from sa_atp.net.switch_process.datapath.arrays import (
        channels,
        flow_firsts,
        flow_keys,
        flow_lasts,
        flow_table,
        message_counts,
        message_packets,
        next_flow_of,
        next_packet,
        out_bytes,
        out_controls,
        out_heads,
        out_lengths,
        out_messages,
        out_names,
        out_parts,
        out_ports,
        out_starts,
        port_costs,
        port_counters,
        port_fds,
        port_first_flow,
        port_holds,
        port_joins,
        port_kinds,
        port_last_flow,
        port_lines,
        port_proved,
        port_slots,
        punted_packets,
        totals,
        wires,
    )
    from sa_atp.net.switch_process.datapath.arriving import be16, is_plain_udp, put_le16
    from sa_atp.net.switch_process.datapath.channels import channel_below, channel_of, send_shared
    from sa_atp.net.switch_process.datapath.operations import (
        address_in,
        copy_bytes,
        errno,
        i64,
        inner,
        load2,
        load4,
        monotonic_us,
        sendmmsg,
        store2,
        store4,
        u64,
        wait_until_writable,
    )
    from sa_atp.net.switch_process.datapath.super_packets import may_join, same_head, single_head, super_head
    from sa_atp.net.switch_process.datapath.wires import hold_leaving

MOST_SEGMENTS = 128  # of one message: UDP_MAX_SEGMENTS, and what it was before Linux 6.9
FEWER_SEGMENTS = 64
MOST_BYTES = 65_000  # below the limit of an IPv4 packet
QUEUED_FRAME_BYTES, ORDINARY_BYTES, QUEUED_PACKET_BYTES = 2304, 1514, 3072  # see `ports`
FULL_US, FULL_WAIT_MS = 50_000, 10
AGAIN = (11, 105)  # EAGAIN, ENOBUFS
MESSAGE_SIZE = 90  # EMSGSIZE: longer than the MTU
NO_SEGMENTS = (5, 22, 92)  # EIO, EINVAL, ENOPROTOOPT: the kernel or the route cannot cut


@inner
def punt(s: int, k: int) -> None:
    """Keeps a packet for the CPU port, until Python takes it."""
    length = out_lengths[k]
    end = totals[PUNTED_END]
    if end + 4 + length > len(punted_packets):
        totals[PUNTS_LOST] += 1
        return
    store4(punted_packets, end, u64(length))
    head = min(length, HEAD_BYTES)
    copy_bytes(punted_packets, end + 4, out_heads, k * HEAD_ROW + HEAD_AT, head)
    copy_bytes(punted_packets, end + 4 + head, out_bytes, out_starts[k], length - head)
    totals[PUNTED_END] = end + 4 + length
    totals[PUNTED] += 1


@inner
def append_flow(s: int, slot: int, flow: int) -> None:
    """Makes a flow the last one of a port."""
    next_flow_of[flow] = -1
    if port_first_flow[slot] < 0:
        port_first_flow[slot] = flow
    else:
        next_flow_of[port_last_flow[slot]] = flow
    port_last_flow[slot] = flow


@inner
def send_up(s: int, k: int) -> int:
    """Readdresses a packet to where its rank's packets go up. Returns: the rank's line; -1: no rank here has sent it."""
    at = k * HEAD_ROW + HEAD_AT
    line = channel_below(s, i64(load4(out_heads, at + 26)) << 16 | be16(out_heads, at + 34))
    if line >= 0:
        above = channels[line, CHANNEL_ABOVE]
        store4(out_heads, at + 30, u64(above >> 16))
        store2(out_heads, at + 36, u64(above & 0xFFFF))
    return line


@inner
def sort_out(s: int, count: int, cpu_port: int, now: int) -> int:
    """Makes a list of the packets of each flow, and of the flows of each port. Returns: how many flows.

    Args: now: when packets enter impaired links; -1: they have crossed them.
    """
    flows = 0
    last_key, flow = i64(-1), 0
    mask = len(flow_table) - 1
    for k in range(count):
        number = out_ports[k]
        if number == cpu_port:
            punt(s, k)
            continue
        slot = port_slots[number]
        if slot < 0:
            totals[UNATTACHED] += 1
            continue
        if now >= 0 and len(wires) > 0 and wires[2 * slot + 1, WIRE_USED] != 0:
            hold_leaving(s, slot, k, now)
            continue
        at = k * HEAD_ROW + HEAD_AT
        length = out_lengths[k]
        is_datagram = length >= HEAD_BYTES and is_plain_udp(out_heads, at)
        if port_lines[slot] >= 0:
            line = send_up(s, k) if is_datagram else -1
            if line < 0:
                port_counters[slot, REFUSED] += 1
                continue
            slot = port_lines[slot] + line
        key = slot << 48
        if is_datagram:
            key |= i64(load4(out_heads, at + 30)) << 16 | be16(out_heads, at + 36)
        if port_kinds[slot] != INTERFACE:
            udp_bytes = be16(out_heads, at + 38)
            if not is_datagram or udp_bytes < 8 or udp_bytes > length - 34:
                port_counters[slot, NOT_DATAGRAMS] += 1
                continue
        next_packet[k] = -1
        if key == last_key:
            next_packet[flow_lasts[flow]] = k
            flow_lasts[flow] = k
            continue
        place = (key ^ key >> 13 ^ key >> 29 ^ key >> 45) & mask
        while flow_table[place] != 0 and flow_keys[flow_table[place] - 1] != key:
            place = (place + 1) & mask
        last_key = key
        if flow_table[place] != 0:
            flow = flow_table[place] - 1
            next_packet[flow_lasts[flow]] = k
            flow_lasts[flow] = k
            continue
        flow = flows
        flows += 1
        flow_table[place] = flows
        flow_keys[flow] = key
        flow_firsts[flow] = k
        flow_lasts[flow] = k
        append_flow(s, slot, flow)
    for flow in range(flows):  # the table is empty again
        key = flow_keys[flow]
        place = (key ^ key >> 13 ^ key >> 29 ^ key >> 45) & mask
        while flow_table[place] != 0:
            flow_table[place] = 0
            place = (place + 1) & mask
    return flows


@inner
def make_messages(s: int, slot: int, flow: int, k: int) -> tuple[int, int, int]:
    """Makes as many messages for a port as there is room for, from packet k of a flow on.

    Returns: the number of messages, and the flow and packet to go on with; flow -1: none is left.
    """
    joins = port_joins[slot]
    is_udp = port_kinds[slot] != INTERFACE
    made, used = 0, 0
    while flow >= 0:
        while k >= 0:
            if made == MESSAGES or used + MOST_SEGMENTS + 1 > PARTS:
                return made, flow, k
            head = k * HEAD_ROW + HEAD_AT
            length = out_lengths[k]
            payload = length - HEAD_BYTES
            first, count, first_part = k, 1, used
            joinable = joins > 1 and payload > 0 and (is_udp or may_join(s, k))
            most = min(joins, MOST_SEGMENTS, MOST_BYTES // payload) if joinable else 1
            if not is_udp:
                out_parts[2 * used] = address_in(s, OUT_HEADS) + head - 10
                out_parts[2 * used + 1] = 10 + min(length, HEAD_BYTES)
                used += 1
            end = out_starts[k] + max(payload, 0)
            if payload > 0 or is_udp:
                out_parts[2 * used] = address_in(s, OUT_BYTES) + out_starts[k]
                out_parts[2 * used + 1] = payload
                used += 1
            k = next_packet[k]
            while k >= 0 and count < most and out_lengths[k] == length:
                if not is_udp and not (same_head(out_heads, head, k * HEAD_ROW + HEAD_AT) and may_join(s, k)):
                    break
                if out_starts[k] == end:  # contiguous with the last one
                    out_parts[2 * used - 1] += payload
                else:
                    out_parts[2 * used] = address_in(s, OUT_BYTES) + out_starts[k]
                    out_parts[2 * used + 1] = payload
                    used += 1
                end = out_starts[k] + payload
                count += 1
                k = next_packet[k]
            words = made * MESSAGE_WORDS
            out_messages[words + NAME] = 0
            out_messages[words + NAME_BYTES] = 0
            out_messages[words + IOV] = address_in(s, OUT_PARTS) + 16 * first_part
            out_messages[words + IOV_COUNT] = used - first_part
            out_messages[words + CONTROL] = 0
            out_messages[words + CONTROL_LENGTH] = 0
            out_messages[words + FLAGS] = 0
            message_packets[made] = first
            message_counts[made] = count
            if is_udp:
                name = made * NAME_ROW
                out_messages[words + NAME] = address_in(s, OUT_NAMES) + name
                out_messages[words + NAME_BYTES] = 16
                put_le16(out_names, name, 2)  # AF_INET
                store2(out_names, name + 2, load2(out_heads, head + 36))
                store4(out_names, name + 4, load4(out_heads, head + 30))
                if count > 1:
                    out_messages[words + CONTROL] = address_in(s, OUT_CONTROLS) + made * CONTROL_ROW
                    out_messages[words + CONTROL_LENGTH] = 24
                    put_le16(out_controls, made * CONTROL_ROW, 18)
                    put_le16(out_controls, made * CONTROL_ROW + 8, 17)  # SOL_UDP, UDP_SEGMENT
                    put_le16(out_controls, made * CONTROL_ROW + 12, 103)
                    put_le16(out_controls, made * CONTROL_ROW + 16, payload)
            elif count > 1:
                super_head(out_heads, head, payload, count)
            else:
                single_head(out_heads, head, False)
            made += 1
        flow = next_flow_of[flow]
        if flow >= 0:
            k = flow_firsts[flow]
    return made, -1, -1


@inner
def flow_of(s: int, slot: int, k: int) -> int:
    """The flow of a packet that leaves by this port."""
    flow = port_first_flow[slot]
    while flow >= 0:
        at = flow_firsts[flow]
        while at >= 0:
            if at == k:
                return i64(flow)
            at = next_packet[at]
        flow = next_flow_of[flow]
    return -1


@inner
def note_cost(s: int, slot: int, made: int) -> None:
    """Updates the average bytes that a waiting frame takes of the socket's buffer: the kernel reports only all bytes."""
    frames, size = 0, 0
    for m in range(made):
        frames += message_counts[m]
        size += out_lengths[message_packets[m]] * message_counts[m]
    if frames > 0:
        alone = QUEUED_FRAME_BYTES + max(0, size // frames - ORDINARY_BYTES)
        average = min((QUEUED_PACKET_BYTES * made + size) * COST_UNITS // frames, alone * COST_UNITS)
        port_costs[slot] = max(COST_UNITS, port_costs[slot] + (average - port_costs[slot]) // 4)


@inner
def send_port(s: int, slot: int) -> None:
    """Sends all packets for a port; those that its queue does not take are lost, as on any switch."""
    port_holds[slot] = 1
    is_udp = port_kinds[slot] != INTERFACE
    flow = port_first_flow[slot]
    k = flow_firsts[flow]
    full_until = i64(0)
    while flow >= 0:
        made, next_flow, next_k = make_messages(s, slot, flow, k)
        if not is_udp:
            note_cost(s, slot, made)
        m, retries = 0, 0
        redo = -1
        while m < made:
            sent = sendmmsg(port_fds[slot], address_in(s, OUT_MESSAGES) + 8 * m * MESSAGE_WORDS, made - m)
            if sent > 0:
                for i in range(m, min(m + sent, made)):
                    totals[PACKETS_OUT] += message_counts[i]
                    if message_counts[i] > 1:
                        port_proved[slot] = 1
                m += sent
                continue
            code = errno()
            if is_udp and code in AGAIN:
                now = monotonic_us(address_in(s, SCRATCH))
                if full_until == 0:
                    full_until = now + FULL_US
                if now < full_until:
                    wait_until_writable(port_fds[slot], address_in(s, SCRATCH), FULL_WAIT_MS)
                    continue
            elif is_udp and code in (32, 103, 104, 111) and retries < 16:
                retries += 1  # an error of an earlier datagram: this one has not been sent
                continue
            elif message_counts[m] > 1 and code in NO_SEGMENTS and (is_udp or port_proved[slot] == 0):
                port_joins[slot] = FEWER_SEGMENTS if message_counts[m] > FEWER_SEGMENTS else 0
                redo = m
                break
            lost_until = made if code in AGAIN else m + 1
            for i in range(m, lost_until):
                port_counters[slot, TOO_LONG if code == MESSAGE_SIZE else REFUSED] += message_counts[i]
            m = lost_until
        if redo >= 0:  # one by one, from this message on
            for i in range(redo, made):
                if not is_udp and message_counts[i] > 1:
                    single_head(out_heads, message_packets[i] * HEAD_ROW + HEAD_AT, True)
            next_k = message_packets[redo]
            next_flow = flow_of(s, slot, next_k)
        flow, k = next_flow, next_k
    port_first_flow[slot] = -1
    port_last_flow[slot] = -1


@inner
def send_to_channels(s: int, slot: int, packets: int) -> None:
    """Sends a port's flows that have channels; the others are left. Args: packets: that leave, in all."""
    flow = port_first_flow[slot]
    port_first_flow[slot] = -1
    port_last_flow[slot] = -1
    while flow >= 0:
        following = next_flow_of[flow]
        c = channel_of(s, flow_keys[flow])
        if c >= 0:
            send_shared(s, c, slot, flow_firsts[flow], packets)
        else:
            append_flow(s, slot, flow)
        flow = following


@inner
def send_all(s: int, count: int, cpu_port: int, now: int) -> None:
    """Sends `count` packets that have left the pipeline. Args: now: see `sort_out`."""
    if sort_out(s, count, cpu_port, now) == 0:
        return
    for slot in range(len(port_fds)):
        if len(channels) > 0 and port_first_flow[slot] >= 0:
            send_to_channels(s, slot, count)
        if port_first_flow[slot] >= 0:
            send_port(s, slot)
