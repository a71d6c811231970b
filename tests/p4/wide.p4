// Fields that are longer than a word: as IPv6 addresses are matched, written, compared, cut and summed.
//
// Compiled forms lie beside this file; compile.py makes them.

#include <core.p4>
#include <v1model.p4>

header order_h {
    bit<8>  what;
    bit<32> answer;
}

header addresses_h {
    bit<128> to;
    bit<72>  via;
    bit<16>  sum;
}

struct headers_t {
    order_h     order;
    addresses_h addresses;
    addresses_h outer;
}

struct meta_t {
    bit<128> held;
    bit<104> ahead;
}

parser WideParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        meta.ahead = packet.lookahead<bit<104>>();
        packet.extract(hdr.addresses);
        transition accept;
    }
}

control NoVerify(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control WideIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    action say(bit<32> number) {
        hdr.order.answer = number;
    }
    action forward(bit<128> to, bit<8> number) {
        hdr.addresses.to = to;
        hdr.order.answer = (bit<32>)number;
    }
    table routes {
        key = { hdr.addresses.to: lpm; }
        actions = { say; forward; }
        default_action = say(1);
        size = 16;
    }
    table hosts {
        key = { hdr.addresses.to: exact; hdr.addresses.via: exact; }
        actions = { say; forward; }
        default_action = say(1);
        size = 16;
    }
    table masks {
        key = { hdr.addresses.via: ternary; hdr.order.what: exact; }
        actions = { say; forward; }
        default_action = say(1);
        size = 16;
    }
    apply {
        standard.egress_spec = 1;
        if (hdr.order.what == 1) {
            routes.apply();
        } else if (hdr.order.what == 2) {
            hosts.apply();
        } else if (hdr.order.what == 3) {
            masks.apply();
        } else if (hdr.order.what == 4) {
            hdr.outer.setValid();
            hdr.outer.to = hdr.addresses.to;
            hdr.outer.via = 0xaabbccddeeff112233;
            hdr.addresses.to = 0x1;
        } else if (hdr.order.what == 5) {
            hdr.order.answer = hdr.addresses.to[95:64];
        } else if (hdr.order.what == 6) {
            hdr.addresses.to[79:48] = 0x12345678;
        } else if (hdr.order.what == 7) {
            meta.held = hdr.addresses.to;
            hdr.addresses.to = (bit<128>)hdr.addresses.sum;
            if (meta.held == 0x20010db8000000000000000000000001) {
                hdr.order.answer = 1;
            } else if (meta.held != hdr.addresses.to) {
                hdr.order.answer = 2;
            } else {
                hdr.order.answer = 3;
            }
        } else if (hdr.order.what == 8) {
            hash(hdr.order.answer, HashAlgorithm.crc32, 32w0, { hdr.addresses.to, hdr.addresses.via }, 64w0x100000000);
        } else if (hdr.order.what == 9) {
            hdr.order.answer = meta.ahead[67:36];
        } else if (hdr.order.what == 10) {
            hdr.outer = hdr.addresses;
            hdr.addresses.to = hdr.addresses.to & 0xff00ff00ff00ff00ff00ff00ff00ff00;
        }
    }
}

control WideEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply { }
}

control WideUpdate(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.order.what == 11, { hdr.addresses.to, hdr.addresses.via, 8w1 }, hdr.addresses.sum,
            HashAlgorithm.csum16);
    }
}

control WideDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(WideParser(), NoVerify(), WideIngress(), WideEgress(), WideUpdate(), WideDeparser()) main;
