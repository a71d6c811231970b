// Constant entries of every match kind, as people write them: values with bits that their mask or prefix does not cover,
// entries that overlap, priorities of their own and equal ones. A packet asks a table; the entry that matched answers.
//
// Compiled forms lie beside this file; compile.py makes them.

#include <core.p4>
#include <v1model.p4>

header query_h {
    bit<8>  which;
    bit<8>  small;  // with the narrow key the embedded target indexes, with the wide one it searches
    bit<16> wide;
    bit<8>  answer;
}

struct headers_t {
    query_h query;
}

struct meta_t { }

parser QueryParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.query);
        transition accept;
    }
}

control NoVerify(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control QueryIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    action say(bit<8> number) {
        hdr.query.answer = number;
    }

    table prefixes {
        key = { hdr.query.wide: lpm; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            0x1234 &&& 0xff00: say(1);
            0x12f4 &&& 0xfff0: say(2);
            0x12f4:            say(3);
            _:                 say(4);
        }
    }

    table short_prefixes {
        key = { hdr.query.small: lpm; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            0x11 &&& 0xf0: say(1);
            0x12:          say(2);
        }
    }

    table masks {
        key = { hdr.query.wide: ternary; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            0x1234 &&& 0x00ff: say(1);
            0x1234 &&& 0xff00: say(2);
            0x5678:            say(3);
            0xffff &&& 0x0000: say(4);
        }
    }

    table short_masks {
        key = { hdr.query.small: ternary; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            0x5a &&& 0x0f: say(1);
            0x5a &&& 0xf0: say(2);
        }
    }

    table exact_and_prefix {
        key = { hdr.query.small: exact; hdr.query.wide: lpm; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            (7, 0x1234 &&& 0xff00): say(1);
            (7, 0x1234):            say(2);
            (8, 0x12ff &&& 0xfff0): say(3);
            (8, _):                 say(4);
        }
    }

    table exact_and_mask {
        key = { hdr.query.small: exact; hdr.query.wide: ternary; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            (7, 0x1234 &&& 0x00ff): say(1);
            (8, 0x1234 &&& 0x000f): say(2);
            (8, _):                 say(3);
        }
    }

    table spans {
        key = { hdr.query.small: range; hdr.query.wide: ternary; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            (3..5, 0x12ff &&& 0x00f0): say(1);
            (_, 0x1234 &&& 0xff00):    say(2);
            (9, _):                    say(3);
        }
    }

    table either {
        key = { hdr.query.small: optional; hdr.query.wide: ternary; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            (5, 0x12ff &&& 0xff00): say(1);
            (_, 0x12ff &&& 0x00ff): say(2);
            (6, _):                 say(3);
        }
    }

    // The smallest number wins, and the first of those that have it.
    table ranked {
        key = { hdr.query.wide: ternary; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            0x1234 &&& 0xff00: say(1) @priority(5);
            0x1234 &&& 0x00ff: say(2) @priority(2);
            0x1234 &&& 0xf00f: say(3) @priority(2);
            0x1234:            say(4) @priority(1);
        }
    }

    direct_counter(CounterType.packets) asked;

    table numbers {
        key = { hdr.query.small: exact; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            7: say(1);
            9: say(2);
        }
        counters = asked;
    }

    // Looks only at the low byte; what stands before it in an entry does not count.
    table low_byte {
        key = { hdr.query.wide & 0x00ff: exact; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            0x1234: say(1);
            0x0056: say(2);
        }
    }

    table low_mask {
        key = { hdr.query.wide & 0x00ff: ternary; }
        actions = { say; }
        const default_action = say(0);
        const entries = {
            0x1234 &&& 0xff0f: say(1);
            0x0050 &&& 0x00f0: say(2);
        }
    }

    apply {
        standard.egress_spec = 1;
        if (hdr.query.which == 1) {
            prefixes.apply();
        } else if (hdr.query.which == 2) {
            short_prefixes.apply();
        } else if (hdr.query.which == 3) {
            masks.apply();
        } else if (hdr.query.which == 4) {
            short_masks.apply();
        } else if (hdr.query.which == 5) {
            exact_and_prefix.apply();
        } else if (hdr.query.which == 6) {
            exact_and_mask.apply();
        } else if (hdr.query.which == 7) {
            spans.apply();
        } else if (hdr.query.which == 8) {
            either.apply();
        } else if (hdr.query.which == 9) {
            ranked.apply();
        } else if (hdr.query.which == 10) {
            numbers.apply();
        } else if (hdr.query.which == 11) {
            low_byte.apply();
        } else if (hdr.query.which == 12) {
            low_mask.apply();
        }
    }
}

control QueryEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply { }
}

control NoUpdate(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control QueryDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(QueryParser(), NoVerify(), QueryIngress(), QueryEgress(), NoUpdate(), QueryDeparser()) main;
