// Small errands beside the losses.
//
// sum_of_weights: what a mean divides by, the weights of the rows that count, added in an order that is always the
// same. multiply_...: the backward pass. The gradient was written in the forward pass; it is multiplied by the
// incoming gradient, and not even read where that is exactly 1, as after loss.backward().

#define THREADS 256

struct Weights {
    const i64* target;
    const float* class_weight;   // (classes,) or null
    const float* sample_weight;  // (rows,) or null
    double* partial;             // (blocks,)
    double* sum;
    u32* ticket;
    i64 rows, classes, ignored;
};

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

KERNEL(THREADS, 4) sum_of_weights(PARAMETER Weights call) {
    SHARED(Board, board);
    double sum = 0;
    i64 row = (i64)blockIdx.x * THREADS + threadIdx.x;
    for (; row < call.rows; row += (i64)gridDim.x * THREADS) {
        i64 y = call.target[row];
        if (y == call.ignored) continue;
        double weight = call.sample_weight ? call.sample_weight[row] : 1.0;
        if (call.class_weight) weight *= (u64)y < (u64)call.classes ? call.class_weight[y] : 0.0f;
        sum += weight;
    }
    sum = over_block(sum, board.total);
    if (gridDim.x > 1) {
        if (threadIdx.x == 0) {
            call.partial[blockIdx.x] = sum;
            board.last = arrived_last(call.ticket, gridDim.x - 1);
        }
        block_barrier();
        if (!board.last) return;
        sum = 0;
        for (u32 block = threadIdx.x; block < gridDim.x; block += THREADS) sum += read_fresh(&call.partial[block]);
        sum = over_block(sum, board.total);
    }
    if (threadIdx.x == 0) *call.sum = sum;
}

// legal_targets: class indices that can be used anywhere, for rules whose rows depend on each other.
struct Legal {
    const i64* target;
    i64* legal;
    bool* kept;
    i64* flag;  // see softmax.cu
    i64* host_flag;
    i64 rows, classes, ignored;
};

KERNEL(THREADS, 4) legal_targets(PARAMETER Legal call) {
    i64 row = (i64)blockIdx.x * THREADS + threadIdx.x;
    for (; row < call.rows; row += (i64)gridDim.x * THREADS) {
        i64 y = call.target[row];
        bool kept = y != call.ignored, inside = (u64)y < (u64)call.classes;
        call.kept[row] = kept && inside;
        call.legal[row] = kept && inside ? y : 0;
        if (kept && !inside && call.flag) {
            keep_smallest(call.flag, row * 8 + 1);
            tell_host(call.host_flag, smallest_kept(call.flag));
        }
    }
}

struct Product {
    void* data;              // as it lies in memory
    const float* incoming;   // one number
    const double* ratio;     // one number, or null
    i64 count;
};

template <class T> DEVICE void multiply(const Product& call) {
    const float factor = (float)(call.ratio ? *call.incoming * *call.ratio : *call.incoming);
    if (factor == 1.0f) return;
    const int each = 16 / sizeof(T), per_word = 4 / sizeof(T);
    const i64 me = (i64)blockIdx.x * THREADS + threadIdx.x, everyone = (i64)gridDim.x * THREADS;
    T* data = (T*)call.data;
    for (i64 i = me; i < call.count / each; i += everyone) {
        Packet<4> packet = ((Packet<4>*)data)[i];
#pragma unroll
        for (int word = 0; word < 4; word++) {
            float x[2];
            unpack(packet.word[word], x, data);
            for (int j = 0; j < per_word; j++) x[j] *= factor;
            packet.word[word] = pack(x, data);
        }
        ((Packet<4>*)data)[i] = packet;
    }
    for (i64 i = call.count / each * each + me; i < call.count; i += everyone) narrow(widen(data[i]) * factor, data[i]);
}

KERNEL(THREADS, 4) multiply_float(PARAMETER Product call) { multiply<float>(call); }
KERNEL(THREADS, 4) multiply_bfloat16(PARAMETER Product call) { multiply<bfloat16>(call); }
KERNEL(THREADS, 4) multiply_float16(PARAMETER Product call) { multiply<float16>(call); }
