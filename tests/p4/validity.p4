// What a header holds that was not there, is gone, or has come back: as simple_switch sees it. A field of an invalid header
// is zero in a table's key and no part of a hash; setValid fills with zeros; egress is told the length that the packet has
// by then.
//
// Compiled forms lie beside this file; compile.py makes them.

#include <core.p4>
#include <v1model.p4>

header order_h {
    bit<8>  what;
    bit<8>  has_extra;
    bit<32> answer;
}

header extra_h {
    bit<8> x;
    bit<8> y;
    bit<8> z;
}

struct headers_t {
    order_h order;
    extra_h extra;
    extra_h spare;  // never comes with a packet
}

struct meta_t {
    bit<12> odd;
}

parser OrderParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition select(hdr.order.has_extra) {
            1:       extra;
            default: accept;
        }
    }
    state extra {
        packet.extract(hdr.extra);
        transition accept;
    }
}

control NoVerify(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control OrderIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    action say(bit<32> number) {
        hdr.order.answer = number;
    }
    table key_of_extra {
        key = { hdr.extra.x: exact; }
        actions = { say; }
        const default_action = say(1);
        const entries = {
            0: say(2);
            5: say(3);
        }
    }
    table key_of_spare {
        key = { hdr.spare.x: ternary; hdr.spare.isValid(): ternary; }
        actions = { say; }
        const default_action = say(1);
        const entries = {
            (0, false): say(2);
            (0, true):  say(3);
            (5, _):     say(4);
        }
    }
    apply {
        standard.egress_spec = 1;
        meta.odd = 0xabc;
        if (hdr.order.what == 0x01) {
            key_of_extra.apply();
        } else if (hdr.order.what == 0x02) {
            hdr.extra.setInvalid();
            key_of_extra.apply();
        } else if (hdr.order.what == 0x03) {
            hdr.spare.x = 5;
            key_of_spare.apply();
        } else if (hdr.order.what == 0x04) {
            hdr.spare.x = 5;
            hdr.spare.setValid();
            key_of_spare.apply();
        } else if (hdr.order.what == 0x05) {
            hdr.extra.setInvalid();
            hdr.extra.setValid();
            hdr.extra.y = 0x77;
        } else if (hdr.order.what == 0x06) {
            hdr.extra.setValid();
        } else if (hdr.order.what == 0x07) {
            hdr.spare = hdr.extra;
        } else if (hdr.order.what == 0x08) {
            hdr.extra.setInvalid();
        } else if (hdr.order.what == 0x10) {
            hash(hdr.order.answer, HashAlgorithm.crc32, 32w0, { hdr.order.what, hdr.extra, meta.odd }, 64w0x100000000);
        } else if (hdr.order.what == 0x11) {
            hash(hdr.order.answer, HashAlgorithm.crc16, 32w0, { hdr.order.what, hdr.extra, meta.odd }, 64w0x100000000);
        } else if (hdr.order.what == 0x12) {
            hash(hdr.order.answer, HashAlgorithm.csum16, 32w0, { hdr.order.what, hdr.extra, meta.odd }, 64w0x100000000);
        } else if (hdr.order.what == 0x13) {
            hash(hdr.order.answer, HashAlgorithm.xor16, 32w0, { hdr.order.what, hdr.extra, meta.odd }, 64w0x100000000);
        } else if (hdr.order.what == 0x14) {
            hash(hdr.order.answer, HashAlgorithm.identity, 32w0, { hdr.extra.z, hdr.order.what, meta.odd }, 64w0x100000000);
        } else if (hdr.order.what == 0x15) {
            hash(hdr.order.answer, HashAlgorithm.crc16, 32w7, { hdr.order.what }, 64w0);
        } else if (hdr.order.what == 0x16) {
            hash(hdr.order.answer, HashAlgorithm.crc32_custom, 32w0, { hdr.order.what, hdr.extra }, 64w0x100000000);
        } else if (hdr.order.what == 0x17) {
            hash(hdr.order.answer, HashAlgorithm.crc16_custom, 32w0, { hdr.order.what, hdr.extra }, 64w0x100000000);
        }
    }
}

control OrderEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.order.what >= 0x05 && hdr.order.what <= 0x08) {
            hdr.order.answer = standard.packet_length;
        }
    }
}

control NoUpdate(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control OrderDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(OrderParser(), NoVerify(), OrderIngress(), OrderEgress(), NoUpdate(), OrderDeparser()) main;
