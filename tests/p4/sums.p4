// Checksums and hashes over what has no fixed length: a varbit, the payload. And loops: over numbers, and over a stack by an
// index that is known only with the packet.
//
// Compiled forms lie beside this file; compile.py makes them.

#include <core.p4>
#include <v1model.p4>

header order_h {
    bit<8>  what;
    bit<8>  count;   // bytes of the options, or items
    bit<16> sum;
    bit<32> answer;
}

header options_h {
    varbit<64> data;
}

header odd_h {
    bit<8> byte;
}

header item_h {
    bit<8> value;
}

struct headers_t {
    order_h   order;
    options_h options;
    odd_h     odd;
    item_h[4] items;
}

struct meta_t {
    bit<8> left;
}

parser SumsParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        meta.left = hdr.order.count;
        transition select(hdr.order.what[7:4]) {
            0:       options;
            1:       item;
            default: accept;
        }
    }
    state options {
        packet.extract(hdr.options, (bit<32>)(hdr.order.count << 3));
        packet.extract(hdr.odd);
        transition accept;
    }
    state item {
        transition select(meta.left) {
            0:       accept;
            default: another_item;
        }
    }
    state another_item {
        packet.extract(hdr.items.next);
        meta.left = meta.left - 1;
        transition item;
    }
}

control SumsVerify(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum_with_payload(hdr.order.what == 3, { hdr.order.what, hdr.options.data, hdr.odd.byte },
            hdr.order.sum, HashAlgorithm.csum16);
    }
}

control SumsIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    action add_up() {
        hdr.order.answer = 0;
        for (bit<8> i = 0; i < hdr.order.count; i = i + 1) {
            if (hdr.items[i].value == 0xff) {
                break;
            }
            hdr.order.answer = hdr.order.answer + (bit<32>)hdr.items[i].value;
        }
    }
    apply {
        standard.egress_spec = 1;
        if (hdr.order.what == 3) {
            hdr.order.answer = (bit<32>)standard.checksum_error;
        } else if (hdr.order.what == 4) {
            hash(hdr.order.answer, HashAlgorithm.crc32, 32w0, { hdr.order.what, hdr.options.data, hdr.odd.byte },
                64w0x100000000);
        } else if (hdr.order.what == 5) {
            hash(hdr.order.answer, HashAlgorithm.identity, 32w0, { hdr.odd.byte, hdr.options.data, hdr.order.what },
                64w0x100000000);
        } else if (hdr.order.what == 0x10) {
            add_up();
        } else if (hdr.order.what == 0x11) {
            bit<8> last = hdr.order.count - 1;
            hdr.items[last].value = hdr.items[last].value + 1;
        }
    }
}

control SumsEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply { }
}

control SumsUpdate(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.order.what == 1, { hdr.order.what, hdr.options.data, hdr.odd.byte },
            hdr.order.sum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.order.what == 2, { hdr.order.what, hdr.options.data, hdr.odd.byte },
            hdr.order.sum, HashAlgorithm.csum16);
    }
}

control SumsDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(SumsParser(), SumsVerify(), SumsIngress(), SumsEgress(), SumsUpdate(), SumsDeparser()) main;
