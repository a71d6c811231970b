// What v1model calls differently, or can do only in its own way.
//
// A register is read and written by separate statements here; ON_STATE writes them around an update, so that what is
// between them is the same on every target: one read-modify-write.

typedef bit<9> PortId_t;  // TNA's name
#define LOOP_PORT 511     // none: packets that are dropped are said to leave by it
#define MARK_ABOVE 40     // packets in a queue
#define SLOT ((bit<32>)hdr.sa.slot)
#define TTL meta.ttl

#define STATE(T, name) register<T>(SLOTS) name;
#define ON_STATE(T, name, operation, result, ...) \
    action operation() { T held; T seen; name.read(held, SLOT); __VA_ARGS__ name.write(SLOT, held); result = seen; }
#define STATE_PAIR(name) register<bit<32>>(SLOTS) name##_id; register<bit<32>>(SLOTS) name##_touched;
#define ON_PAIR(name, operation, result, ...) \
    action operation() { \
        claim_t held; claim_t was; bit<8> seen; \
        name##_id.read(was.id, SLOT); name##_touched.read(was.touched, SLOT); held = was; __VA_ARGS__ \
        name##_id.write(SLOT, held.id); name##_touched.write(SLOT, held.touched); result = seen; }
#define WHEN(condition, target, value) target = (condition) ? value : target;
#define SEE_CASE(own, lapsed) \
    seen = (own) ? ((lapsed) ? ENTRY_OWN_LAPSED : ENTRY_OWN) : ((lapsed) ? ENTRY_LAPSED : ENTRY_OTHER);
#define DO(operation, result) operation();
#define CLAIMABLE_WHEN_COMPLETE \
    if (meta.full == 1 && meta.is_leaf == 0) { \
        slot_claim_touched.write(SLOT, meta.now - LONG_AGO); slot_live.write(SLOT, 0); }

#define COUNTER(name, size) counter(size, CounterType.packets_and_bytes) name;
#define COUNT(name, index) name.count((bit<32>)(index));

// What the shared parser and controls are given besides headers and meta_t; fields of `standard` have the same names everywhere.
#define PARSER_METADATA inout meta_t meta, inout standard_metadata_t standard
#define INGRESS_METADATA inout standard_metadata_t standard
#define INGRESS_ARGUMENTS standard
#define EGRESS_METADATA inout standard_metadata_t standard
#define DEPARSER_PARAMETERS in headers_t hdr

// LONG_AGO: so that what was never touched has lapsed.
#define ARRIVAL meta.damaged = standard.checksum_error; meta.now = standard.ingress_global_timestamp[41:10] + LONG_AGO;
#define TO_PORT(port) standard.egress_spec = port;
#define TO_GROUP(group) standard.mcast_grp = group;
#define TO_NOBODY mark_to_drop(standard);

// Headers are verified between parser and ingress (sa_atp.p4), and egress gets them as ingress left them.
#define BEFORE_ETHERNET
#define TELL_EGRESS(what)
#define VERIFIER
#define VERIFY(header)
