// Evidence, cost and gradient of a softmax head, in one reading of the logits.
//
// A *team* of threads takes a row: some lanes of a warp, a block, or a cluster of blocks, so that the row fits
// into its registers. With u the logits (shifted where a loss asks for it), y the true class and "the others"
// every class but y, a row goes through five steps:
//
//   1. read      each thread takes its elements, 16 bytes at a time; y is taken out of the others.
//   2. extremes  the largest of the others, and its place, where the evidence asks for it.
//   3. sums      e_j = exp(u_j - reference), summed over the others. The reference is the largest of them, so the
//                sum lies between 1 and K, nothing is lost however far y is ahead or behind, and
//                    log-odds = (u_y - reference) - log(sum)
//                needs no difference of large sums.
//   4. price     a few numbers a row: the evidence, the rule's cost, its derivatives. `price` is generated from
//                the rule (see _tracing.py), or loads derivatives that autograd hands in, or stores evidence.
//   5. gradient  g_j = e_j (flat + tilt t_j + square e_j) + constant w_j with t_j = u_j - reference and four
//                numbers a row, and single entries at y and at a rival; written once, in the logits' type.
//
// Where the largest of the others must be known by name (PLACED), it is taken out of the sums as y is, and its part
// of the gradient is computed like y's, a row at a time: with nearly all the probability on it, what is left for the
// others would drown in the rounding of its own term. Where the evidence is about the first choice (PRECISE), the
// reference is the second largest logit of all, and sums are float64 over float32 terms: then they do not depend on
// the order of the classes, as ranks require. Shifted logits are never rounded to one number: at logits of 1e4 the
// sum with an offset would be off by 5e-4, so differences are taken of the parts.
//
// Settings, each a macro of the generated head of the file:
//   LOGIT            type of logits and gradient: float, bfloat16, float16
//   SOURCE           DIRECT: classes are neighbours in memory; STAGED: narrow rows that follow each other, through
//                    shared memory; STRIDED: classes lie apart, as in (n, K, height, width)
//   VECTOR           elements in one access; RAGGED: rows start anywhere, their ends are taken singly
//   THREADS          of a block; TEAM of them share a row (a power of two); CLUSTER blocks share one
//   CHUNKS, KEEP     accesses a thread keeps in registers; KEEP 0: any number, read again at each step
//   SCALE, OFFSET    u = z * scale + offset, per class
//   WEIGHTED_SUM     sum_log_p weighs classes
//   NEED_...         which evidence is asked for
//   EXTRAS           something beside logits and targets: weights, incoming gradients, a number a row to write
//   PRICED           the rule is in `price`; else STORES evidence, or loads its derivatives
//   GRADIENT         write the gradient
//   FIELDS(X)        evidence stored or differentiated: X(name)

#define DIRECT 0
#define STAGED 1
#define STRIDED 2

#define PRECISE (NEED_FIRST_CHOICE)
#define SHIFTED (SCALE || OFFSET)
#define PLACED (PRECISE || NEED_RIVAL || NEED_SQUARES || SHIFTED)
#define MEMBERS (TEAM * CLUSTER)
#define WARPS ((TEAM + 31) / 32)
#define POSTS (WARPS * CLUSTER)
#define TEAMS (THREADS / TEAM)
#define KEEPS_LOGITS (NEED_ENTROPY || NEED_SUM_LOG_P)  // instead of their exponentials, for the gradient
// Beyond the row's end there are minus infinities, which change nothing; but what is looked up by class must be there.
#define BOUNDED (!KEEP || SHIFTED || WEIGHTED_SUM)
#define LOG2_E 1.4426950408889634f
#define SURE 1e30f
#define NOTHING_BAD (1ll << 62)

struct Call {
    const LOGIT* logits;
    LOGIT* gradient;
    const i64* target;         // (rows,) legal where kept
    const bool* kept;          // (rows,) or null: rows whose target is not `ignored` are
    bool* forced;              // (rows,) rows without an alternative, or null
    const float* scale;        // (classes,) each
    const float* offset;
    const float* class_weight;
    const float* sample_weight;  // (rows,)
    const float* incoming;       // gradient of the result: (rows,), or one number
    const double* denominator;   // one number; null: 1
    float* costs;                // (rows,) or null
    double* partial;             // (blocks,)
    float* total;                // sum of the weighted costs, or null
    u32* ticket;                 // 0 between launches
    i64* flag;                   // smallest packed (row, code) of anything bad, or null
    i64* host_flag;              // where the host looks
    const void* table[16];       // the rule's tensors
    void* field[20];             // evidence out, or its derivatives in
    i64 rows;
    i64 inner;                   // rows = outer * inner
    i64 row_stride, class_stride, inner_stride;
    i64 row_out, class_out, inner_out;
    i64 ignored;
    double numerator;
    int classes;
    int incoming_step;           // 1: one a row
    int costs_class_weight;      // multiply the cost by the class weight
    int counts_here;             // every block counts the denominator itself
};

struct Fields {
    float log_odds, log_p, log_miss, log_rival, log_next_lower, sum_log_p, sum_other_p_squared;
    double confidence_log_odds, log_top, log_second, entropy;
    i64 rival, next_lower, top, second, classes, target;
    float class_weight;
};

struct Slopes {  // derivatives of the cost
    float log_odds, log_p, log_miss, log_rival, log_next_lower, sum_log_p, sum_other_p_squared;
    float confidence_log_odds, log_top, log_second, entropy;
};

// ---------------------------------------------------------------- what a team adds up

struct Extremes {  // of the others
    float most;
#if PLACED
    int most_at;
#endif
#if PRECISE
    float next;
    int next_at;
#endif
#if NEED_NEXT_LOWER
    float lower;  // the largest below the true class
    int lower_at;
#endif
};

struct Sums {
#if PRECISE
    double rest;
#else
    float rest;
#endif
#if NEED_ENTROPY
    double tilt;  // e t
#endif
#if NEED_SQUARES
    float squares;  // e e
#endif
#if NEED_SUM_LOG_P
    float weighted, weight;  // w t, w over classes that are not masked
#endif
#if NEED_CLASSES
    int classes;
#endif
};

DEVICE bool ahead(float a, int a_at, float b, int b_at) { return a > b || (a == b && a_at < b_at); }

DEVICE Extremes no_extremes() {
    Extremes x;
    x.most = -INFINITE;
#if PLACED
    x.most_at = 0x7fffffff;
#endif
#if PRECISE
    x.next = -INFINITE, x.next_at = 0x7fffffff;
#endif
#if NEED_NEXT_LOWER
    x.lower = -INFINITE, x.lower_at = 0x7fffffff;
#endif
    return x;
}

DEVICE Extremes combine(const Extremes& a, const Extremes& b) {
    Extremes x;
#if PLACED
    bool first = ahead(a.most, a.most_at, b.most, b.most_at);
    x.most = first ? a.most : b.most;
    x.most_at = first ? a.most_at : b.most_at;
#else
    x.most = fmaxf(a.most, b.most);
#endif
#if PRECISE
    float beaten = first ? b.most : a.most, runner = first ? a.next : b.next;
    int beaten_at = first ? b.most_at : a.most_at, runner_at = first ? a.next_at : b.next_at;
    bool beats = ahead(beaten, beaten_at, runner, runner_at);
    x.next = beats ? beaten : runner;
    x.next_at = beats ? beaten_at : runner_at;
#endif
#if NEED_NEXT_LOWER
    bool lower = ahead(a.lower, a.lower_at, b.lower, b.lower_at);
    x.lower = lower ? a.lower : b.lower;
    x.lower_at = lower ? a.lower_at : b.lower_at;
#endif
    return x;
}

DEVICE void take_in(Extremes& x, float u, int at, float true_logit) {
#if PRECISE
    if (u > x.most) x.next = x.most, x.next_at = x.most_at, x.most = u, x.most_at = at;
    else if (u > x.next) x.next = u, x.next_at = at;
#elif PLACED
    if (u > x.most) x.most = u, x.most_at = at;
#else
    x.most = fmaxf(x.most, u);
#endif
#if NEED_NEXT_LOWER
    if (u < true_logit && u > x.lower) x.lower = u, x.lower_at = at;
#endif
}

DEVICE Sums no_sums() {
    Sums s;
    memset(&s, 0, sizeof(s));
    return s;
}

DEVICE Sums combine(const Sums& a, const Sums& b) {
    Sums s = a;
    s.rest += b.rest;
#if NEED_ENTROPY
    s.tilt += b.tilt;
#endif
#if NEED_SQUARES
    s.squares += b.squares;
#endif
#if NEED_SUM_LOG_P
    s.weighted += b.weighted, s.weight += b.weight;
#endif
#if NEED_CLASSES
    s.classes += b.classes;
#endif
    return s;
}

DEVICE float share_of(float distance) { return power_of_two(distance * LOG2_E); }

// `distance` from the reference, at most 0; e its exponential.
DEVICE void take_in(Sums& s, float distance, float e, float weight) {
    s.rest += e;
#if NEED_SQUARES
    s.squares += e * e;
#endif
#if NEED_ENTROPY
    s.tilt += e * fmaxf(distance, -SURE);
#endif
#if NEED_SUM_LOG_P
    if (distance > -INFINITE) s.weighted += weight * distance, s.weight += weight;
#endif
#if NEED_CLASSES
    s.classes += distance > -INFINITE;
#endif
}

// ---------------------------------------------------------------- what a row's gradient is made of

struct Logit {  // a shifted logit, in parts
    float product;
#if SHIFTED
    float error, offset;
#endif
};

struct Shape {
    float flat, tilt, square, constant;
    float at_true, at_most, at_second, at_lower;  // instead of the rest; for the last two, besides
    int true_at, most_at, second_at, lower_at;    // -1: nowhere
    Logit reference;
};

struct Board {  // shared by the threads of a block
    Extremes extremes[POSTS];
    Sums sums[POSTS];
    Shape shape;
    double total[32];
    bool last;
};

template <class T> DEVICE T over_warp(T mine, int lanes) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) mine = combine(mine, exchange(mine, distance));
    return mine;
}

DEVICE void team_barrier() {
#if CLUSTER > 1
    cluster_barrier();
#else
    block_barrier();
#endif
}

// Every thread of the team gets the whole; pairs are combined in an order that is always the same.
template <class T> DEVICE T over_team(T mine, T nothing, T* board) {
    mine = over_warp(mine, TEAM < 32 ? TEAM : 32);
#if POSTS > 1
    int lane = lane_number();
#if CLUSTER > 1
    int post = rank_in_cluster() * WARPS + warp_number();
    if (lane < CLUSTER) put_at_peer(&board[post], mine, lane);
#else
    if (lane == 0) board[warp_number()] = mine;
#endif
    team_barrier();
    mine = nothing;
    // where there are fewer posts than lanes, each group of lanes adds up all of them
    for (int post = lane & (POSTS - 1); post < POSTS; post += 32) mine = combine(mine, board[post]);
    mine = over_warp(mine, POSTS < 32 ? POSTS : 32);
#endif
    return mine;
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

// ---------------------------------------------------------------- reading and writing elements

struct Place {  // of a row in memory
    const LOGIT* from;
    LOGIT* to;
    int shift;  // RAGGED: elements from the last 16-byte border to the row's first
    int member;
    bool idle;  // an ignored row: nothing is read, as if every class were masked
};

DEVICE int position(const Place& place, int chunk) { return (chunk * MEMBERS + place.member) * VECTOR - place.shift; }

DEVICE Logit logit_of(const Call& call, float z, int k) {
    Logit u;
    u.product = z;
#if SHIFTED
    u.error = u.offset = 0;
#endif
#if SCALE
    float scale = call.scale[k];
    u.product = __fmul_rn(z, scale);
    u.error = fabsf(u.product) < INFINITE ? __fmaf_rn(z, scale, -u.product) : 0.0f;
#endif
#if OFFSET
    u.offset = call.offset[k];
#endif
    return u;
}

DEVICE float rounded(const Logit& u) {
#if SHIFTED
    return u.product + u.offset;
#else
    return u.product;
#endif
}

DEVICE float minus(const Logit& a, const Logit& b) {
#if SHIFTED
    return (a.product - b.product) + ((a.error - b.error) + (a.offset - b.offset));
#else
    return a.product - b.product;
#endif
}

DEVICE double wide(const Logit& u) {
#if SHIFTED
    return (double)u.product + u.error + u.offset;
#else
    return u.product;
#endif
}

// The class, or the nearest there is: beyond a row's ends every logit is minus infinity anyway.
DEVICE int class_at(const Call& call, int k) { return RAGGED ? min(max(k, 0), call.classes - 1) : k; }

DEVICE void overwrite(float (&v)[VECTOR], int at, float value) {
    if ((u32)at >= VECTOR) return;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        if (i == at) v[i] = value;
}

DEVICE void increase(float (&v)[VECTOR], int at, float value) {
    if ((u32)at >= VECTOR) return;
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        if (i == at) v[i] += value;
}

#if VECTOR > 1
typedef Packet<VECTOR * sizeof(LOGIT) / 4> Access;
#else
struct Access { float one; };
#endif

DEVICE bool whole(const Call& call, int p) { return (!RAGGED || p >= 0) && p + VECTOR <= call.classes; }

// The access itself, so that all of a thread's can be under way at once; minus infinity where there is nothing.
DEVICE void begin_read(const Call& call, const Place& place, int p, Access& access) {
#if VECTOR > 1
#pragma unroll
    for (u32& word : access.word) word = minus_infinities(place.from);
    if (whole(call, p) && !place.idle) access = fetch<!KEEP>((const Access*)(place.from + p));
#else
    access.one = -INFINITE;
    if (p < call.classes && !place.idle) access.one = widen(place.from[SOURCE == STRIDED ? p * call.class_stride : p]);
#endif
}

DEVICE void end_read(const Call& call, const Place& place, int p, const Access& access, float (&v)[VECTOR]) {
#if VECTOR > 1
    const int per_word = 4 / sizeof(LOGIT);
#pragma unroll
    for (int i = 0; i < VECTOR / per_word; i++) unpack(access.word[i], &v[i * per_word], place.from);
#else
    v[0] = access.one;
#endif
#if RAGGED
    if (!whole(call, p) && !place.idle && p + VECTOR > 0 && p < call.classes) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (p + i >= 0 && p + i < call.classes) v[i] = widen(place.from[p + i]);
    }
#endif
}

DEVICE void write(const Call& call, const Place& place, int p, float (&g)[VECTOR]) {
#if VECTOR > 1
    const int per_word = 4 / sizeof(LOGIT);
    Access access;
#pragma unroll
    for (int i = 0; i < VECTOR / per_word; i++) access.word[i] = pack(&g[i * per_word], place.from);
#if RAGGED
    if (!whole(call, p) || (u64)(place.to + p) % sizeof(Access) != 0) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            if (p + i >= 0 && p + i < call.classes) narrow(g[i], place.to[p + i]);
        return;
    }
#endif
    put((Access*)(place.to + p), access);
#else
    narrow(g[0], place.to[SOURCE == STRIDED ? p * call.class_out : p]);
#endif
}

// ---------------------------------------------------------------- step 4: a few numbers a row

struct Row {
    Fields fields;
    Logit truth, most, lower, reference;  // of y, of the largest other, of the next lower; what exponentials count from
    float p, miss;
    float share;       // d log-odds / d u_j = -share e_j
    float unit;        // probability = unit e_j
    float log_unit;    // log-probability at the reference
    float e_true;      // PRECISE: of y, where y is not the first choice
    double tail;       // PRECISE: sum of e over all but the first choice
    float most_share;  // PLACED: -d log-odds / d u_most
    float q, not_q;    // PLACED: probability of the largest other, and its complement
    double log_q;
    float weight_of_true, weight_of_most;  // in sum_log_p
    bool true_is_top, forced;
};

// log p, log(1 - p) and both without logarithms, from the log-odds.
DEVICE void set_probability(Row& row) {
    Fields& f = row.fields;
    const float small = expf(-fabsf(f.log_odds)), tail = log_one_plus(small), larger = inverse(1.0f + small);
    f.log_p = fminf(f.log_odds, 0.0f) - tail;
    f.log_miss = fminf(-f.log_odds, 0.0f) - tail;
    row.p = f.log_odds > 0 ? larger : small * larger;
    row.miss = f.log_odds > 0 ? small * larger : larger;
}

#if PRECISE
DEVICE void describe_odds(const Sums& s, Row& row) {
    Fields& f = row.fields;
    const Logit& top = row.true_is_top ? row.truth : row.most;
    const double lead = wide(top) - wide(row.reference);
    row.e_true = row.true_is_top ? 0.0f : share_of(minus(row.truth, row.reference));
    row.tail = row.true_is_top ? 1.0 + s.rest : s.rest + row.e_true;
    f.confidence_log_odds = lead - log(row.tail);
    f.log_top = -log1p(exp(-f.confidence_log_odds));
    f.log_second = f.log_top - lead;
    row.log_unit = f.log_second, row.unit = expf(row.log_unit);
    if (row.true_is_top) {
        f.log_odds = f.confidence_log_odds;
        row.share = row.most_share = inverse((float)row.tail);
        set_probability(row);
        row.log_q = f.log_second, row.q = row.unit;
        row.not_q = row.p + row.unit * (float)s.rest;
    } else {  // the largest other is the first choice
        float distance = expf(-(float)lead), beside = distance * (float)s.rest;
        f.log_odds = minus(row.truth, row.most) - log1pf(beside);
        row.most_share = inverse(1.0f + beside), row.share = distance * row.most_share;
        set_probability(row);
        float small = expf(-fabsf((float)f.confidence_log_odds)), larger = inverse(1.0f + small);
        row.log_q = f.log_top;
        row.q = f.confidence_log_odds > 0 ? larger : small * larger;
        row.not_q = f.confidence_log_odds > 0 ? small * larger : larger;
    }
}
#else
DEVICE void describe_odds(const Sums& s, Row& row) {
    Fields& f = row.fields;
    // Where the largest other is kept apart it adds its 1 here.
    const float rest = PLACED ? 1.0f + s.rest : s.rest, log_rest = PLACED ? log1pf(s.rest) : quick_log(s.rest);
    f.log_odds = minus(row.truth, row.reference) - log_rest;
    row.share = row.most_share = inverse(rest);
    set_probability(row);
    row.log_unit = f.log_miss - log_rest, row.unit = row.miss * row.share;
    row.log_q = row.log_unit, row.q = row.unit;
    row.not_q = row.p + row.unit * s.rest;
}
#endif

DEVICE void describe(const Call& call, const Extremes& x, const Sums& s, Row& row) {
    describe_odds(s, row);
    Fields& f = row.fields;
#if NEED_ENTROPY
    const double lead = wide(row.true_is_top ? row.truth : row.most) - wide(row.reference);
    double tilt = s.tilt + (row.true_is_top ? 0.0 : (double)(row.e_true * minus(row.truth, row.reference)));
    f.entropy = -exp(f.log_top - lead) * (tilt - row.tail * lead) - f.log_top;
#endif
#if NEED_SQUARES
    f.sum_other_p_squared = row.unit * row.unit * s.squares + row.q * row.q;
#endif
#if NEED_RIVAL
    f.rival = x.most_at, f.log_rival = row.log_q;
#endif
#if NEED_NEXT_LOWER
    bool none = x.lower == -INFINITE;
    f.next_lower = none ? 0 : x.lower_at;
    if (none) f.log_next_lower = -SURE;
    else f.log_next_lower = minus(row.lower, row.reference) + row.log_unit;
#endif
#if PRECISE
    bool true_second = ahead(rounded(row.truth), f.target, x.next, x.next_at);
    f.top = row.true_is_top ? f.target : x.most_at;
    f.second = row.true_is_top ? x.most_at : true_second ? f.target : x.next_at;
#endif
#if NEED_SUM_LOG_P
    row.weight_of_true = row.weight_of_most = 1;
#if WEIGHTED_SUM
    row.weight_of_true = call.class_weight[f.target];
#if PLACED
    row.weight_of_most = call.class_weight[x.most_at];
#endif
#endif
    f.sum_log_p = s.weighted + s.weight * row.log_unit + row.weight_of_true * f.log_p;
    if (PLACED) f.sum_log_p += row.weight_of_most * (float)row.log_q;
#endif
#if NEED_CLASSES
    f.classes = s.classes + 1 + PLACED;
#endif
}

// A row whose other classes are all masked: nothing was decided. Finite numbers, those of equal logits.
DEVICE void describe_forced(int classes, Row& row) {
    Fields& f = row.fields;
    float count = classes;
    f.log_odds = -logf(count - 1.0f), f.log_p = -logf(count), f.log_miss = log1pf(-1.0f / count);
    f.log_rival = f.log_p, f.log_next_lower = -SURE;
    f.sum_log_p = count * f.log_p, f.sum_other_p_squared = (count - 1.0f) / (count * count);
    f.confidence_log_odds = SURE, f.log_top = 0, f.log_second = -log((double)count), f.entropy = 0;
    f.rival = f.second = f.target == 0 ? 1 : 0;
    f.next_lower = 0, f.top = f.target, f.classes = 1;
}

// What a class with probability q and complement not_q gets from the fields that are log-probabilities: `own` is the
// slope of those that are its own, `lost` of all the others'.
DEVICE float of_logarithms(float own, float lost, float q, float not_q) { return own * not_q - lost * q; }

// How the gradient of the row's weighted cost depends on its elements.
DEVICE Shape shape_of(const Extremes& x, const Sums& s, const Row& row, const Slopes& d, float w) {
    const Fields& f = row.fields;
    Shape shape;
    memset(&shape, 0, sizeof(shape));
    shape.true_at = f.target, shape.most_at = shape.second_at = shape.lower_at = -1;
    shape.reference = row.reference;
    float odds = d.log_odds + d.log_p * row.miss - d.log_miss * row.p, away = 0;
    float own_true = 0, own_most = 0, elsewhere = 0;  // slopes of log-probabilities, by whose they are
#if NEED_RIVAL
    own_most += d.log_rival;
#endif
#if NEED_NEXT_LOWER
    float lower = x.lower == -INFINITE ? 0.0f : d.log_next_lower;
    shape.lower_at = x.lower == -INFINITE ? -1 : x.lower_at, shape.at_lower = w * lower;
    elsewhere += lower;
#endif
#if PRECISE
    if (row.true_is_top) {
        odds += d.confidence_log_odds, own_true += d.log_top, own_most += d.log_second;
    } else {
        away = d.confidence_log_odds / (float)row.tail, own_most += d.log_top;
        if (f.second == f.target) own_true += d.log_second;
        else elsewhere += d.log_second, shape.second_at = f.second, shape.at_second = w * d.log_second;
    }
#endif
    float lost = own_true + own_most + elsewhere;
    float at_true = odds - away * row.e_true + of_logarithms(own_true, own_most + elsewhere, row.p, row.miss);
    float at_most = -odds * row.most_share + of_logarithms(own_most, own_true + elsewhere, row.q, row.not_q);
    if (!row.true_is_top) at_most += d.confidence_log_odds;
#if NEED_SUM_LOG_P
    float in_true = row.weight_of_true, in_most = PLACED ? row.weight_of_most : 0.0f;
    shape.constant = w * d.sum_log_p;
    lost += d.sum_log_p * (s.weight + in_true + in_most);
    at_true += d.sum_log_p * of_logarithms(in_true, s.weight + in_most, row.p, row.miss);
    at_most += d.sum_log_p * of_logarithms(in_most, s.weight + in_true, row.q, row.not_q);
#endif
#if NEED_SQUARES
    float twice = 2.0f * d.sum_other_p_squared, squares = row.unit * row.unit * s.squares;
    shape.square = w * twice * row.unit * row.unit;
    lost += twice * f.sum_other_p_squared;
    at_true -= twice * f.sum_other_p_squared * row.p;
    at_most += twice * row.q * (row.q * row.not_q - squares);  // q (q - squares of all), where q may be nearly 1
#endif
#if NEED_ENTROPY
    shape.tilt = -w * row.unit * d.entropy;
    lost += d.entropy * (row.log_unit + (float)f.entropy);
    at_true -= d.entropy * row.p * (float)((double)f.log_p + f.entropy);
    at_most -= d.entropy * row.q * (float)(row.log_q + f.entropy);
#endif
    shape.flat = w * (-odds * row.share - row.unit * lost - away);
    shape.at_true = w * at_true;
#if PLACED
    shape.most_at = x.most_at, shape.at_most = w * at_most;
#endif
    return shape;
}

#if PRICED
// PRICE
#else
#define STORE(name) ((decltype(Fields::name)*)call.field[FIELD_##name])[row] = fields.name;
#define LOAD(name) if (call.field[FIELD_##name]) slopes.name = ((const decltype(Fields::name)*)call.field[FIELD_##name])[row];
DEVICE void price(const Call& call, i64 row, const Fields& fields, bool leader, float& cost, Slopes& slopes) {
    memset(&slopes, 0, sizeof(slopes));
    cost = 0;
#if GRADIENT
    FIELDS(LOAD)
#else
    if (leader) { FIELDS(STORE) }
#endif
}
#endif

// ---------------------------------------------------------------- weights, checks, totals

DEVICE bool is_kept(const Call& call, i64 row, i64 y) {
    return EXTRAS && call.kept ? call.kept[row] : y != call.ignored;
}

DEVICE double count_denominator(const Call& call, Board& board) {
    double sum = 0;
    for (i64 row = threadIdx.x; row < call.rows; row += THREADS) {
        i64 y = call.target[row];
        if (!is_kept(call, row, y)) continue;
        double weight = call.sample_weight ? call.sample_weight[row] : 1.0;
        if (call.class_weight) weight *= (u64)y < (u64)call.classes ? call.class_weight[y] : 0.0f;
        sum += weight;
    }
    return over_block(sum, board.total);
}

DEVICE void report(const Call& call, i64 row, int code) {
    if (call.flag) keep_smallest(call.flag, row * 8 + code);
}

#define OUT_OF_RANGE 1
#define NOT_FINITE 2
#define IMPOSSIBLE 3
#define BAD_WEIGHT 4

// The blocks' partial sums, added by the block that comes last, always in the same order.
DEVICE void finish(const Call& call, double mine, double factor, Board& board) {
    double sum = over_block(mine, board.total);
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) {
            call.partial[blockIdx.x] = sum;
            board.last = arrived_last(call.ticket, gridDim.x - 1);
        }
        block_barrier();
        if (!board.last) return;
        double part = 0;
        for (u32 block = threadIdx.x; block < gridDim.x; block += THREADS) part += read_fresh(&call.partial[block]);
        sum = over_block(part, board.total);
    }
    if (threadIdx.x != 0) return;
    if (call.total) *call.total = sum * factor;
    if (call.flag) {
        i64 smallest = smallest_kept(call.flag);
        if (smallest < NOTHING_BAD) tell_host(call.host_flag, smallest);
    }
}

// ---------------------------------------------------------------- a row

struct Task {
    i64 row;
    bool valid;  // there is such a row
    Place place;
    i64 target;
    bool kept, legal, counts;
};

DEVICE Task task_of(const Call& call, i64 row, int member) {
    Task task;
    task.valid = row < call.rows;
    if (!task.valid) row = call.rows - 1;
    task.row = row;
    i64 outer = row, within = 0;
    if (call.inner > 1) outer = row / call.inner, within = row - outer * call.inner;
    task.place.from = call.logits + outer * call.row_stride + within * call.inner_stride;
    task.place.to = call.gradient + outer * call.row_out + within * call.inner_out;
    task.place.member = member;
    task.place.shift = 0;
#if RAGGED
    task.place.shift = ((u64)task.place.from % 16) / sizeof(LOGIT);
#endif
    task.target = call.target[row];
    task.kept = is_kept(call, row, task.target);
    task.legal = (u64)task.target < (u64)call.classes;
    task.counts = task.valid && task.kept && task.legal;
    task.place.idle = !task.counts;
    if (task.place.idle) task.target = 0;
    return task;
}

DEVICE float element(const Call& call, const Place& place, int k) {
    return widen(place.from[SOURCE == STRIDED ? k * call.class_stride : k]);
}

// The logit of a class that was found, whose rounded value is known.
DEVICE Logit found(const Call& call, const Place& place, float value, int k) {
#if SHIFTED
    if (!place.idle && k < call.classes) return logit_of(call, element(call, place, k), k);
#endif
    Logit u;
    memset(&u, 0, sizeof(u));
    u.product = value;
    return u;
}

// Who the row's main classes are, and what exponentials count from.
DEVICE void set_out(const Call& call, const Place& place, const Extremes& x, Row& row) {
    row.true_is_top = true;
#if PLACED
    row.most = found(call, place, x.most, x.most_at);
#else
    row.most = found(call, place, x.most, call.classes);
#endif
    row.reference = row.most;
#if NEED_NEXT_LOWER
    row.lower = found(call, place, x.lower, x.lower_at);
#endif
#if PRECISE
    const float truth = rounded(row.truth);
    row.true_is_top = ahead(truth, row.fields.target, x.most, x.most_at);
    if (!row.true_is_top) row.reference = truth >= x.next ? row.truth : found(call, place, x.next, x.next_at);
#endif
    if (x.most == -INFINITE) memset(&row.reference, 0, sizeof(Logit));
}

// Step 4, by the team's first warp: evidence, cost, and what the gradient is made of. The cost, weighed, if it counts.
DEVICE float settle(const Call& call, const Task& task, const Extremes& x, const Sums& s, Row& row, float factor,
                    Shape& shape) {
    const bool leader = task.place.member == 0 && task.valid;
    const bool alone = x.most == -INFINITE, spoiled = alone && s.rest != 0;
    float cost, weight = 1;
    Slopes slopes;
#if EXTRAS
    const float class_weight = call.class_weight ? call.class_weight[task.target] : 1.0f;
    if (call.sample_weight) weight = call.sample_weight[task.row];
    const bool bad_weight = !(weight >= 0.0f && weight < INFINITE);
    if (call.costs_class_weight) weight *= class_weight;
    row.fields.class_weight = class_weight;
#endif
    row.forced = alone && !spoiled;
    if (alone) describe_forced(call.classes, row);
    else describe(call, x, s, row);
    if (spoiled) row.fields.log_odds = row.fields.log_p = row.fields.log_miss = NOT_A_NUMBER;
    price(call, task.row, row.fields, leader, cost, slopes);
    if (row.forced || !task.counts) cost = 0;
    if (alone || !task.counts) {
        memset(&shape, 0, sizeof(shape));
        shape.true_at = shape.most_at = shape.second_at = shape.lower_at = -1;
    } else {
        float whole = weight * factor;
#if EXTRAS
        if (call.incoming) whole *= call.incoming[call.incoming_step ? task.row : 0];
#endif
        shape = shape_of(x, s, row, slopes, whole);
    }
    if (!leader) return 0;
    if (call.flag && task.kept) {
        const float truth = rounded(row.truth);
        const bool fine = row.forced ? fabsf(truth) < INFINITE : fabsf(row.fields.log_odds) < INFINITE;
        if (!task.legal) report(call, task.row, OUT_OF_RANGE);
        else if (!fine) report(call, task.row, truth == -INFINITE ? IMPOSSIBLE : NOT_FINITE);
#if EXTRAS
        else if (bad_weight) report(call, task.row, BAD_WEIGHT);
#endif
    }
    cost = task.counts ? cost * weight : 0.0f;
#if EXTRAS
    if (call.forced) call.forced[task.row] = row.forced && task.kept;
    if (call.costs) call.costs[task.row] = cost;
#endif
    return cost;
}

// Gradient of VECTOR neighbours, the first of them class p, from their exponentials or logits.
DEVICE void differentiate(const Call& call, const Shape& shape, int p, const float (&here)[VECTOR], float (&g)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const int k = class_at(call, p + i);
#if KEEP && !KEEPS_LOGITS
        const float e = here[i];
#else
        const float distance = minus(logit_of(call, here[i], k), shape.reference), e = share_of(distance);
#endif
        float slope = shape.flat;
#if NEED_ENTROPY
        slope += shape.tilt * fmaxf(distance, -SURE);
#endif
#if NEED_SQUARES
        slope += shape.square * e;
#endif
        g[i] = e * slope;
#if NEED_SUM_LOG_P
        if (distance > -INFINITE) g[i] += shape.constant * (WEIGHTED_SUM ? call.class_weight[k] : 1.0f);
#endif
    }
    overwrite(g, shape.true_at >= 0 ? shape.true_at - p : -1, shape.at_true);
#if PLACED
    overwrite(g, shape.most_at >= 0 ? shape.most_at - p : -1, shape.at_most);
#endif
#if PRECISE
    increase(g, shape.second_at >= 0 ? shape.second_at - p : -1, shape.at_second);
#endif
#if NEED_NEXT_LOWER
    increase(g, shape.lower_at >= 0 ? shape.lower_at - p : -1, shape.at_lower);
#endif
#if SCALE
#pragma unroll
    for (int i = 0; i < VECTOR; i++) g[i] *= call.scale[class_at(call, p + i)];
#endif
}

// Steps 1 to 5 for one row a team. Returns the cost, weighed, in the team's first thread only.
DEVICE float take_row(const Call& call, const Task& task, float factor, Board& board) {
    const Place& place = task.place;
    const int y = task.target;
    Row row;
    memset(&row, 0, sizeof(row));
    row.fields.target = y;
    row.truth = logit_of(call, place.idle ? 0.0f : element(call, place, y), y);
#if KEEP
    const int chunks = CHUNKS;
    float kept[CHUNKS][VECTOR];
    Access access[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) begin_read(call, place, position(place, c), access[c]);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        end_read(call, place, position(place, c), access[c], kept[c]);
        overwrite(kept[c], y - position(place, c), -INFINITE);
    }
#define HERE kept[c]
#define LOOK_AGAIN
#else
    const int chunks = (call.classes + place.shift + VECTOR * MEMBERS - 1) / (VECTOR * MEMBERS);
    float here[VECTOR];
    Access access;
#define HERE here
#define LOOK_AGAIN                                                                                                \
    begin_read(call, place, p, access), end_read(call, place, p, access, here), overwrite(here, y - p, -INFINITE);
#endif

    Extremes x = no_extremes();
    const float truth = rounded(row.truth);
#pragma unroll
    for (int c = 0; c < chunks; c++) {
        const int p = position(place, c);
        if (BOUNDED && p >= call.classes) continue;
        LOOK_AGAIN
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            take_in(x, rounded(logit_of(call, HERE[i], class_at(call, p + i))), p + i, truth);
    }
    x = over_team(x, no_extremes(), board.extremes);
    set_out(call, place, x, row);

    Sums s = no_sums();
#pragma unroll
    for (int c = 0; c < chunks; c++) {
        const int p = position(place, c);
        if (BOUNDED && p >= call.classes) continue;
        LOOK_AGAIN
#if PLACED
        overwrite(HERE, x.most_at - p, -INFINITE);
#endif
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const int k = class_at(call, p + i);
            const float distance = minus(logit_of(call, HERE[i], k), row.reference), e = share_of(distance);
            take_in(s, distance, e, WEIGHTED_SUM ? call.class_weight[k] : 1.0f);
#if KEEP && !KEEPS_LOGITS
            HERE[i] = e;
#endif
        }
    }
    s = over_team(s, no_sums(), board.sums);

    float weighted = 0;
    Shape shape;
    if (WARPS == 1 || warp_number() == 0) {
        weighted = settle(call, task, x, s, row, factor, shape);
#if GRADIENT && WARPS > 1
        if (lane_number() == 0) board.shape = shape;
#endif
    }
#if GRADIENT
#if WARPS > 1
    block_barrier();
    shape = board.shape;
#endif
#if SOURCE == STAGED
    warp_barrier();  // the row is overwritten from here on
#endif
    if (!task.valid) return 0;
#pragma unroll
    for (int c = 0; c < chunks; c++) {
        const int p = position(place, c);
        if (p >= call.classes) continue;
        LOOK_AGAIN
        float g[VECTOR];
        differentiate(call, shape, p, HERE, g);
        write(call, place, p, g);
    }
#endif
    return weighted;
}

// ---------------------------------------------------------------- the kernel

#if SOURCE == STAGED
// Rows that follow each other, to shared memory and back in whole accesses, whatever their width.
typedef Packet<4> Wide;

DEVICE void stage_in(const LOGIT* from, LOGIT* to, int count) {
    const int each = sizeof(Wide) / sizeof(LOGIT);
    int whole = (u64)from % sizeof(Wide) == 0 ? count / each : 0;
    for (int i = threadIdx.x; i < whole; i += THREADS) ((Wide*)to)[i] = fetch<false>((const Wide*)from + i);
    for (int i = whole * each + threadIdx.x; i < count; i += THREADS) to[i] = from[i];
}

DEVICE void stage_out(const LOGIT* from, LOGIT* to, int count) {
    const int each = sizeof(Wide) / sizeof(LOGIT);
    int whole = (u64)to % sizeof(Wide) == 0 ? count / each : 0;
    for (int i = threadIdx.x; i < whole; i += THREADS) put((Wide*)to + i, ((const Wide*)from)[i]);
    for (int i = whole * each + threadIdx.x; i < count; i += THREADS) to[i] = from[i];
}
#endif

KERNEL(THREADS, MIN_BLOCKS) CLUSTERED(CLUSTER) softmax_rows(PARAMETER Call call) {
    SHARED(Board, board);
    int member = threadIdx.x % TEAM;
    u32 block = blockIdx.x, blocks = gridDim.x;
#if CLUSTER > 1
    member += rank_in_cluster() * TEAM;
    block /= CLUSTER, blocks /= CLUSTER;
    cluster_barrier();  // nobody writes to a block that has not begun
#endif
    double denominator = 1;
    if (call.counts_here) denominator = count_denominator(call, board);
    else if (call.denominator) denominator = *call.denominator;
    const double exact = call.numerator / (denominator > 0 ? denominator : 1.0);
    const float factor = (float)exact;
    float sum = 0, lost = 0;  // of the costs, and what rounding took from it
    for (i64 first = (i64)block * TEAMS; first < call.rows; first += (i64)blocks * TEAMS) {
        Task task = task_of(call, first + threadIdx.x / TEAM, member);
#if SOURCE == STAGED
        DYNAMIC_SHARED(staged);
        LOGIT* stage = (LOGIT*)staged;
        int count = (int)(call.rows - first < TEAMS ? call.rows - first : TEAMS) * call.classes;
        stage_in(call.logits + first * call.row_stride, stage, count);
        block_barrier();
        task.place.to = stage + (threadIdx.x / TEAM) * call.classes;
        task.place.from = task.place.to;
#endif
        const float cost = take_row(call, task, factor, board) - lost, more = sum + cost;
        lost = (more - sum) - cost, sum = more;
#if SOURCE == STAGED
        block_barrier();
#if GRADIENT
        stage_out(stage, call.gradient + first * call.row_out, count);
        block_barrier();
#endif
#endif
    }
    finish(call, (double)sum - lost, exact, board);
#if CLUSTER > 1
    cluster_barrier();  // nobody leaves while others may still write to it
#endif
}
