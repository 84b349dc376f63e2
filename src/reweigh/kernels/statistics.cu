// Numbers of a whole batch, for losses whose rows depend on each other: counts in bins, a quantile, and the smoothed
// distribution that a histogram stands for. Counts are integers and sums have a fixed order, so the same scores give
// the same bits. All scores are float64.

#define THREADS 256
#define DIGITS 2048  // of 11 bits
#define MOST_BINS 4096

struct Board { double total[32]; bool last; };

// ---------------------------------------------------------------- counts in bins

struct Bins {
    const double* scores;
    const bool* kept;  // or null
    u32* counter;      // (bins,), 0 between launches
    double* counts;    // (bins,)
    u32* ticket;
    i64 rows;
    int bins;
};

// Counts of [k / bins, (k + 1) / bins), the last bin closed; what lies outside goes to the nearest.
KERNEL(THREADS, 4) count_in_bins(PARAMETER Bins call) {
    SHARED(Board, board);
    DYNAMIC_SHARED(memory);
    u32* own = (u32*)memory;
    for (int bin = threadIdx.x; bin < call.bins; bin += THREADS) own[bin] = 0;
    block_barrier();
    for (i64 row = (i64)blockIdx.x * THREADS + threadIdx.x; row < call.rows; row += (i64)gridDim.x * THREADS) {
        if (call.kept && !call.kept[row]) continue;
        double place = floor(call.scores[row] * call.bins);
        int bin = place >= call.bins ? call.bins - 1 : place > 0 ? (int)place : 0;
        count_up(&own[bin], 1);
    }
    block_barrier();
    for (int bin = threadIdx.x; bin < call.bins; bin += THREADS)
        if (own[bin]) count_up(&call.counter[bin], own[bin]);
    block_barrier();
    if (threadIdx.x == 0) board.last = arrived_last(call.ticket, gridDim.x - 1);
    block_barrier();
    if (!board.last) return;
    for (int bin = threadIdx.x; bin < call.bins; bin += THREADS) {
        call.counts[bin] = count_read(&call.counter[bin]);
        call.counter[bin] = 0;
    }
}

// ---------------------------------------------------------------- a quantile

struct Search {          // what one pass leaves for the next
    u64 prefix;          // leading bits of the number that is looked for
    i64 rank;            // its place among the numbers with these bits
    double share;        // of the way to the next number
    u64 next;            // the smallest number above, or all ones
    i64 has_next;        // is it needed?
};

struct Select {
    const double* scores;
    const bool* kept;
    u32* counter;        // (DIGITS,), 0 between launches
    Search* search;
    double* quantile;
    u32* ticket;
    i64 rows;
    double level;
    int number;          // of the pass, 0 to 5: eleven bits each, from the top; 6: the number that follows
};

// Order of the bits as that of the numbers.
DEVICE u64 key_of(double x) {
    u64 bits = bits_of(x);
    return bits >> 63 ? ~bits : bits | (1ull << 63);
}
DEVICE double number_of(u64 key) { return number_with(key >> 63 ? key & ~(1ull << 63) : ~key); }

DEVICE int shift_of(int pass) { return pass < 5 ? 53 - 11 * pass : 0; }
DEVICE int width_of(int pass) { return pass < 5 ? 11 : 9; }

// Where the sought rank falls, among counts of digits, by sums of 8 and of 64 of them. All threads call it.
DEVICE void choose_digit(const Select& call, u32* counter) {
    u32 *eights = counter + DIGITS, *groups = eights + THREADS, sum = 0;
    for (int i = 0; i < DIGITS / THREADS; i++) sum += counter[threadIdx.x * (DIGITS / THREADS) + i];
    eights[threadIdx.x] = sum;
    block_barrier();
    if (threadIdx.x < 32) {
        sum = 0;
        for (int i = 0; i < THREADS / 32; i++) sum += eights[threadIdx.x * (THREADS / 32) + i];
        groups[threadIdx.x] = sum;
    }
    block_barrier();
    if (threadIdx.x != 0) return;
    Search search = *call.search;
    if (call.number == 0) {
        i64 count = 0;
        for (int group = 0; group < 32; group++) count += groups[group];
        double position = call.level * (double)(count > 0 ? count - 1 : 0);
        search.rank = count > 0 ? (i64)floor(position) : -1;
        search.share = position - floor(position);
        search.prefix = 0, search.next = ~0ull, search.has_next = 0;
    }
    i64 left = search.rank;
    int group = 0, eight = 0, digit = 0;
    while (group < 31 && (i64)groups[group] <= left) left -= groups[group++];
    eight = group * (THREADS / 32);
    while (eight < THREADS - 1 && (i64)eights[eight] <= left) left -= eights[eight++];
    digit = eight * (DIGITS / THREADS);
    while (digit < DIGITS - 1 && (i64)counter[digit] <= left) left -= counter[digit++];
    search.rank = left;
    search.prefix = search.prefix << width_of(call.number) | digit;
    if (call.number == 5) {
        search.has_next = search.share > 0 && left + 1 >= (i64)counter[digit];
        *call.quantile = left < 0 ? (double)INFINITE : number_of(search.prefix);  // right unless the next has a share
    }
    *call.search = search;
}

KERNEL(THREADS, 4) select_pass(PARAMETER Select call) {
    SHARED(Board, board);
    DYNAMIC_SHARED(memory);
    u32* own = (u32*)memory;
    const u64 prefix = call.number > 0 ? call.search->prefix : 0;
    const bool follows = call.number == 6;
    if (follows && !call.search->has_next) return;
    for (int digit = threadIdx.x; digit < DIGITS; digit += THREADS) own[digit] = 0;
    block_barrier();
    const int shift = shift_of(call.number), width = width_of(call.number);
    for (i64 row = (i64)blockIdx.x * THREADS + threadIdx.x; row < call.rows; row += (i64)gridDim.x * THREADS) {
        if (call.kept && !call.kept[row]) continue;
        u64 key = key_of(call.scores[row]);
        if (follows) {
            if (key > prefix) keep_smallest_key(&call.search->next, key);
        } else if (call.number == 0 || key >> (shift + width) == prefix) {
            count_up(&own[key >> shift & ((1 << width) - 1)], 1);
        }
    }
    block_barrier();
    if (!follows)
        for (int digit = threadIdx.x; digit < DIGITS; digit += THREADS)
            if (own[digit]) count_up(&call.counter[digit], own[digit]);
    block_barrier();
    if (threadIdx.x == 0) board.last = arrived_last(call.ticket, gridDim.x - 1);
    block_barrier();
    if (!board.last) return;
    for (int digit = threadIdx.x; digit < DIGITS; digit += THREADS) {
        own[digit] = count_read(&call.counter[digit]);
        call.counter[digit] = 0;
    }
    block_barrier();
    if (!follows) {
        choose_digit(call, own);
    } else if (threadIdx.x == 0) {
        double low = number_of(prefix), high = number_of(fresh_key(&call.search->next));
        *call.quantile = low + call.search->share * (high - low);
    }
}

// ---------------------------------------------------------------- the smoothed distribution, in cubic pieces

struct Cubics {
    const double* counts;  // (bins,)
    double* below;         // (4, pieces) coefficients of G
    double* above;         // (4, pieces) of 1 - G
    const double* place;   // one number
    double* inverse_there;  // 1 / G there
    double smoothing;
    int bins, pieces;
};

// G(s) = sum of h_m / N times a logistic step at the bin's middle; each piece meets value and slope at both ends.
KERNEL(THREADS, 4) cubic_pieces(PARAMETER Cubics call) {
    const int piece = blockIdx.x * THREADS + threadIdx.x;
    if (piece > call.pieces) return;
    const bool there = piece == call.pieces;  // one more thread, for G at the place
    double value[2] = {0, 0}, rest[2] = {0, 0}, slope[2] = {0, 0}, total = 0;
    for (int bin = 0; bin < call.bins; bin++) total += call.counts[bin];
    for (int bin = 0; bin < call.bins; bin++) {
        const double share = call.counts[bin] / (total > 0 ? total : 1.0);
        if (share == 0) continue;
        for (int end = 0; end < 2; end++) {
            double at = there ? *call.place : (double)(piece + end) / call.pieces;
            double step = (at - (bin + 0.5) / call.bins) / call.smoothing;
            double small = exp(-fabs(step)), larger = 1.0 / (1.0 + small), smaller = small * larger;
            double under = step > 0 ? larger : smaller, over = step > 0 ? smaller : larger;
            value[end] += share * under, rest[end] += share * over, slope[end] += share * under * over;
        }
    }
    if (there) {
        *call.inverse_there = 1.0 / value[0];
        return;
    }
    for (int side = 0; side < 2; side++) {
        const double* at = side == 0 ? value : rest;
        const double sign = (side == 0 ? 1.0 : -1.0) / (call.smoothing * call.pieces);
        const double rise = sign * slope[0], fall = sign * slope[1], step = at[1] - at[0];
        double* out = (side == 0 ? call.below : call.above) + piece;
        out[0] = at[0];
        out[call.pieces] = rise;
        out[2 * call.pieces] = 3 * step - 2 * rise - fall;
        out[3 * call.pieces] = rise + fall - 2 * step;
    }
}
