// What v1model calls differently, or can do only in its own way.
//
// A register is read and written by separate statements here; ON_STATE writes them around an update, so that what is
// between them is the same on every target: one read-modify-write.

#ifndef SA_V1MODEL_TARGET_P4
#define SA_V1MODEL_TARGET_P4

// TNA's names for what the shared controls see of the architecture.
typedef bit<9>  PortId_t;
typedef bit<16> CopyId_t;

struct claim_t { bit<32> id; bit<32> touched; }
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

#define WAY_OUT inout standard_metadata_t standard
#define THE_WAY_OUT standard
#define TO_PORT(port) standard.egress_spec = port;
#define TO_GROUP(group) standard.mcast_grp = group;
#define TO_NOBODY mark_to_drop(standard);

// Headers are verified between parser and ingress (sa_atp.p4).
#define VERIFIER
#define VERIFY(header)

#endif
