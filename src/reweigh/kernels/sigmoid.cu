// Cost and gradient of a sigmoid head, in one reading of logits and labels.
//
// Every label is a decision of its own, so each thread works alone: it reads 16 bytes of logits and their labels,
// turns each logit into the evidence of its outcome (m = z where the label is present, -z where it is absent),
//
//     log p = min(m, 0) - log(1 + e^-|m|),   log(1 - p) = min(-m, 0) - log(1 + e^-|m|),
//
// asks the rule for cost and derivatives, and writes the gradient. `price_present` and `price_absent` are generated
// from the rule (see _tracing.py), one for each kind of label; a soft label t costs t present + (1 - t) absent,
// unless the rule has a soft form of its own, `price_soft`.
//
// The mean divides by the number of labels that count, which is known only afterwards. The gradient is written as
// if all counted; where some did not, `ratio` says what is missing, and the backward pass, which looks at every
// incoming gradient for a factor other than 1 anyhow, makes up for it.
//
// Settings:
//   LOGIT       type of logits and gradient; LABEL  of labels
//   LABELS      HARD: integers, or anything where more than 1/2 is present; SOFT: shares; OWN: `price_soft`;
//               INDEX: class indices, one for each row
//   VECTOR      elements in one access: all tensors lie alike; 1: each has strides of its own
//   PLACES      something is looked up by row or class: the rule's tensors, weights, offsets, class indices
//   SYMMETRIC   present and absent labels cost the same
//   OFFSET, CLASS_WEIGHT, SAMPLE_WEIGHT   are there such
//   IGNORES     labels equal to `ignored` do not count
//   GRADIENT    write the gradient
//   THREADS     of a block

#define HARD 0
#define SOFT 1
#define OWN 2
#define INDEX 3
#define LOG2_E 1.4426950408889634f
#define SURE 1e30f
#define NOTHING_BAD (1ll << 62)
#define NOT_FINITE 2
#define OUT_OF_RANGE 1
#define BAD_WEIGHT 4
#define BAD_LABEL 5

struct Strides { i64 row, of_class, inner; };

struct Call {
    const LOGIT* logits;
    LOGIT* gradient;
    const LABEL* label;
    const float* offset;         // (classes,)
    const float* class_weight;   // (classes,)
    const float* sample_weight;  // by its strides
    const float* incoming;       // gradient of the result: like the logits, or one number
    const double* denominator;   // one number, or null
    float* costs;                // like the logits, or null
    double* partial;             // (2 * blocks,)
    float* total;                // or null
    double* ratio;               // all labels over those that count, or null: then nothing is counted
    u32* ticket;
    i64* flag;
    i64* host_flag;
    const void* table[16];
    Strides logits_at, gradient_at, label_at, weight_at, incoming_at, costs_at;
    i64 count, classes, inner;
    i64 ignored;
    double numerator;
    float ignored_label;
    int incoming_step;
};

struct Fields { float log_odds, log_p, log_miss, share; };
struct Slopes { float log_odds, log_p, log_miss; };
struct Spot { i64 row, within; int k; };  // element (row, k, within) of (n, classes, inner)

// PRICE

struct Priced { float cost, slope; };

DEVICE Fields evidence_of(float m, float share, float& small) {
    m = fminf(fmaxf(m, -SURE), SURE);
    small = power_of_two(-fabsf(m) * LOG2_E);
    float tail = log_one_plus(small);
    return {m, fminf(m, 0.0f) - tail, fminf(-m, 0.0f) - tail, share};
}

DEVICE float chain(const Slopes& s, float m, float small) {
    float larger = inverse(1.0f + small), smaller = small * larger;
    return s.log_odds + s.log_p * (m > 0 ? smaller : larger) - s.log_miss * (m > 0 ? larger : smaller);
}

DEVICE Priced priced_present(const Call& call, const Spot& spot, float z, float share) {
    float small, cost;
    Slopes slopes;
    Fields fields = evidence_of(z, share, small);
#if LABELS == OWN
    price_soft(call, spot, fields, cost, slopes);
#else
    price_present(call, spot, fields, cost, slopes);
#endif
    return {cost, chain(slopes, z, small)};
}

#if LABELS != OWN
DEVICE Priced priced_absent(const Call& call, const Spot& spot, float z) {
    float small, cost;
    Slopes slopes;
    Fields fields = evidence_of(-z, 0, small);
    price_absent(call, spot, fields, cost, slopes);
    return {cost, -chain(slopes, -z, small)};
}
#endif

#if LABELS == SOFT
RARELY Priced priced_between(const Call& call, const Spot& spot, float z, float share) {
    Priced present = priced_present(call, spot, z, share), absent = priced_absent(call, spot, z);
    return {share * present.cost + (1.0f - share) * absent.cost,
            share * present.slope + (1.0f - share) * absent.slope};
}
#endif

DEVICE Priced priced(const Call& call, const Spot& spot, float z, float share) {
#if LABELS == OWN
    return priced_present(call, spot, z, share);
#else
#if LABELS == SOFT
    if (share != 0.0f && share != 1.0f) return priced_between(call, spot, z, share);
#endif
#if SYMMETRIC
    bool present = share > 0.5f;
    Priced got = priced_present(call, spot, present ? z : -z, share);
    return {got.cost, present ? got.slope : -got.slope};
#else
    return share > 0.5f ? priced_present(call, spot, z, share) : priced_absent(call, spot, z);
#endif
#endif
}

DEVICE Spot spot_of(const Call& call, i64 e) {
    Spot spot = {0, 0, 0};
    if (call.count <= 0x7fffffff) {
        u32 at = e, inner = call.inner, classes = call.classes, rest = at / inner;
        spot.within = at - rest * inner, spot.row = rest / classes, spot.k = rest - (u32)spot.row * classes;
    } else {
        i64 rest = e / call.inner;
        spot.within = e - rest * call.inner, spot.row = rest / call.classes, spot.k = rest - spot.row * call.classes;
    }
    return spot;
}

DEVICE void advance(const Call& call, Spot& spot) {
    if (++spot.within < call.inner) return;
    spot.within = 0;
    if (++spot.k < call.classes) return;
    spot.k = 0, spot.row++;
}

RARELY void report(const Call& call, i64 e, int code) {
    if (call.flag) keep_smallest(call.flag, spot_of(call, e).row * 8 + code);
}

DEVICE i64 at(const Strides& s, const Spot& spot) {
    return spot.row * s.row + spot.k * s.of_class + spot.within * s.inner;
}

DEVICE float number(float x) { return x; }
DEVICE float number(bfloat16 x) { return widen(x); }
DEVICE float number(float16 x) { return widen(x); }
DEVICE float number(double x) { return (float)x; }
DEVICE float number(i64 x) { return (float)x; }
DEVICE float number(int x) { return (float)x; }
DEVICE float number(short x) { return (float)x; }
DEVICE float number(signed char x) { return (float)x; }
DEVICE float number(unsigned char x) { return (float)x; }

struct Tally { float cost; int counted; };

// One element: cost and gradient added to what the thread holds.
DEVICE float take(const Call& call, const Spot& spot, i64 e, float z, LABEL label, float incoming, float factor,
                  Tally& tally, float& cost_out) {
    bool counts = true, legal = true;
    float share, weight = 1;
#if LABELS == INDEX
    counts = !IGNORES || label != call.ignored;
    legal = (u64)label < (u64)call.classes;
    share = label == spot.k ? 1.0f : 0.0f;
#else
    share = number(label);
    counts = !IGNORES || share != call.ignored_label;
    legal = share >= 0.0f && share <= 1.0f;
#endif
    if (!counts || !legal) share = 0;
    const float read = z;
#if OFFSET
    z = __fadd_rn(z, call.offset[spot.k]);
#endif
#if SAMPLE_WEIGHT
    weight = call.sample_weight[at(call.weight_at, spot)];
    if (counts && !(weight >= 0.0f && weight < INFINITE)) report(call, e, BAD_WEIGHT);
#endif
#if CLASS_WEIGHT
    weight *= call.class_weight[spot.k];
#endif
    bool fine = read < INFINITE && (read > -INFINITE || share <= 0.0f);
    if (counts && !legal) report(call, e, LABELS == INDEX ? OUT_OF_RANGE : BAD_LABEL);
    else if (counts && !fine) report(call, e, NOT_FINITE);
    Priced got = priced(call, spot, z, share);
    cost_out = counts ? got.cost * weight : 0.0f;
    tally.cost += cost_out;
    tally.counted += counts;
    return counts ? got.slope * weight * factor * incoming : 0.0f;
}

DEVICE double over_block(double mine, double* board) {
    for (int distance = 16; distance > 0; distance /= 2) mine += exchange(mine, distance);
    block_barrier();
    if (lane_number() == 0) board[warp_number()] = mine;
    block_barrier();
    double sum = 0;
    for (int warp = 0; warp < THREADS / 32; warp++) sum += board[warp];
    return sum;
}

struct Board { double total[32]; bool last; };

DEVICE void finish(const Call& call, double cost, double counted, double factor, Board& board) {
    cost = over_block(cost, board.total);
    if (call.ratio) counted = over_block(counted, board.total);
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) {
            call.partial[2 * blockIdx.x] = cost, call.partial[2 * blockIdx.x + 1] = counted;
            board.last = arrived_last(call.ticket, gridDim.x - 1);
        }
        block_barrier();
        if (!board.last) return;
        cost = counted = 0;
        for (u32 block = threadIdx.x; block < gridDim.x; block += THREADS) {
            cost += read_fresh(&call.partial[2 * block]);
            counted += read_fresh(&call.partial[2 * block + 1]);
        }
        cost = over_block(cost, board.total);
        if (call.ratio) counted = over_block(counted, board.total);
    }
    if (threadIdx.x != 0) return;
    if (call.ratio) {
        double ratio = (double)call.count / (counted > 1.0 ? counted : 1.0);
        *call.ratio = ratio, factor *= ratio;
    }
    if (call.total) *call.total = cost * factor;
    if (call.flag) {
        i64 smallest = smallest_kept(call.flag);
        if (smallest < NOTHING_BAD) tell_host(call.host_flag, smallest);
    }
}

#if VECTOR > 1
typedef Packet<VECTOR * sizeof(LOGIT) / 4> Access;
typedef Packet<VECTOR * sizeof(LABEL) / 4> LabelAccess;

struct Several { Access logits; LABEL label[VECTOR]; };

DEVICE void read(const Call& call, i64 e, Several& got) {
    got.logits = fetch<false>((const Access*)(call.logits + e));
#if LABELS == INDEX
    Spot spot = spot_of(call, e);
    for (int i = 0; i < VECTOR; i++, advance(call, spot)) got.label[i] = call.label[spot.row * call.inner + spot.within];
#else
    fetch_several<VECTOR>(call.label + e, got.label);
#endif
}

DEVICE void work(const Call& call, i64 e, const Several& got, float scalar, float factor, double& cost, i64& counted) {
    const int per_word = 4 / sizeof(LOGIT);
    float z[VECTOR], g[VECTOR];
    Tally tally = {0, 0};
    Spot spot = {0, 0, 0};
    if (PLACES) spot = spot_of(call, e);
#pragma unroll
    for (int i = 0; i < VECTOR / per_word; i++) unpack(got.logits.word[i], &z[i * per_word], call.logits);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        float one, incoming = call.incoming && call.incoming_step ? call.incoming[e + i] : scalar;
        g[i] = take(call, spot, e + i, z[i], got.label[i], incoming, factor, tally, one);
        if (call.costs) call.costs[e + i] = one;
        if (PLACES) advance(call, spot);
    }
    cost += tally.cost, counted += tally.counted;
#if GRADIENT
    Access access;
#pragma unroll
    for (int i = 0; i < VECTOR / per_word; i++) access.word[i] = pack(&g[i * per_word], call.logits);
    put((Access*)(call.gradient + e), access);
#endif
}
#endif

DEVICE void work_singly(const Call& call, i64 e, float scalar, float factor, double& cost, i64& counted) {
    Spot spot = spot_of(call, e);
    Tally tally = {0, 0};
    float one, incoming = scalar;
    if (call.incoming && call.incoming_step) incoming = call.incoming[at(call.incoming_at, spot)];
#if LABELS == INDEX
    LABEL label = call.label[spot.row * call.inner + spot.within];
#else
    LABEL label = call.label[at(call.label_at, spot)];
#endif
    float z = widen(call.logits[at(call.logits_at, spot)]);
    float g = take(call, spot, e, z, label, incoming, factor, tally, one);
    if (call.costs) call.costs[at(call.costs_at, spot)] = one;
#if GRADIENT
    narrow(g, call.gradient[at(call.gradient_at, spot)]);
#endif
    cost += tally.cost, counted += tally.counted;
}

KERNEL(THREADS, MIN_BLOCKS) sigmoid_elements(PARAMETER Call call) {
    SHARED(Board, board);
    double denominator = call.denominator ? *call.denominator : 1.0;
    const double exact = call.numerator / (denominator > 0 ? denominator : 1.0);
    const float factor = (float)exact, scalar = call.incoming && !call.incoming_step ? *call.incoming : 1.0f;
    double cost = 0;
    i64 counted = 0;
    const i64 me = (i64)blockIdx.x * THREADS + threadIdx.x, everyone = (i64)gridDim.x * THREADS;
#if VECTOR > 1
    const i64 accesses = call.count / VECTOR;
    Several now, next;
    if (me < accesses) read(call, me * VECTOR, now);
    for (i64 i = me; i < accesses; i += everyone) {
        if (i + everyone < accesses) read(call, (i + everyone) * VECTOR, next);  // under way while this one is priced
        work(call, i * VECTOR, now, scalar, factor, cost, counted);
        now = next;
    }
    for (i64 e = accesses * VECTOR + me; e < call.count; e += everyone)
        work_singly(call, e, scalar, factor, cost, counted);
#else
    for (i64 e = me; e < call.count; e += everyone) work_singly(call, e, scalar, factor, cost, counted);
#endif
    finish(call, cost, (double)counted, exact, board);
}
