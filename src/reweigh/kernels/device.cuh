// What only the hardware can do, in one place: number formats, functions of one instruction, accesses of up to
// 16 bytes, and talk among the threads of a warp, a block and a cluster of blocks. The kernels use these names
// and nothing else of the machine, so that the tests can run them on a CPU by putting another file in its place.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define RARELY static __device__ __noinline__
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#if CLUSTER > 1
#define CLUSTERED(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define CLUSTERED(blocks)
#endif
#define PARAMETER const __grid_constant__
#define SHARED(type, name) __shared__ type name
#define DYNAMIC_SHARED(name) extern __shared__ uint4 name[]
#define INFINITE __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)
#define EVERY_LANE 0xffffffffu

// ---------------------------------------------------------------- number formats

struct bfloat16 { unsigned short bits; };
struct float16 { unsigned short bits; };

DEVICE float widen(float x) { return x; }
DEVICE float widen(bfloat16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE float widen(float16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

DEVICE void narrow(float x, float& y) { y = x; }
DEVICE void narrow(float x, float16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void narrow(float x, bfloat16& y) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    u32 bits = __float_as_uint(x);
    y.bits = x != x ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#endif
}

// A word of minus infinities.
DEVICE u32 minus_infinities(const float*) { return 0xff800000u; }
DEVICE u32 minus_infinities(const bfloat16*) { return 0xff80ff80u; }
DEVICE u32 minus_infinities(const float16*) { return 0xfc00fc00u; }

// ---------------------------------------------------------------- several neighbours in one access

template <int WORDS> struct alignas(4 * WORDS) Packet { u32 word[WORDS]; };

// Data used once: last in line for the caches. SECOND_LOOK: it will be read again, keep it if there is room.
template <bool SECOND_LOOK> DEVICE Packet<4> fetch(const Packet<4>* at) {
    uint4 got = SECOND_LOOK ? __ldg((const uint4*)at) : __ldcs((const uint4*)at);
    return {got.x, got.y, got.z, got.w};
}
template <bool SECOND_LOOK> DEVICE Packet<2> fetch(const Packet<2>* at) {
    uint2 got = SECOND_LOOK ? __ldg((const uint2*)at) : __ldcs((const uint2*)at);
    return {got.x, got.y};
}
template <bool SECOND_LOOK> DEVICE Packet<1> fetch(const Packet<1>* at) {
    return {SECOND_LOOK ? __ldg((const u32*)at) : __ldcs((const u32*)at)};
}
// Several values of any type, as wide as it goes.
template <int COUNT, class T> DEVICE void fetch_several(const T* at, T* out) {
    const int words = COUNT * sizeof(T) / 4, each = words < 4 ? words : 4;
#pragma unroll
    for (int i = 0; i < words / each; i++) {
        Packet<each> got = fetch<false>((const Packet<each>*)at + i);
        memcpy((char*)out + i * sizeof(got), &got, sizeof(got));
    }
}
DEVICE void put(Packet<4>* at, Packet<4> x) { __stcs((uint4*)at, make_uint4(x.word[0], x.word[1], x.word[2], x.word[3])); }
DEVICE void put(Packet<2>* at, Packet<2> x) { __stcs((uint2*)at, make_uint2(x.word[0], x.word[1])); }
DEVICE void put(Packet<1>* at, Packet<1> x) { __stcs((u32*)at, x.word[0]); }

DEVICE void unpack(u32 word, float* out, const float*) { out[0] = __uint_as_float(word); }
DEVICE void unpack(u32 word, float* out, const bfloat16*) {
    out[0] = __uint_as_float(word << 16);
    out[1] = __uint_as_float(word & 0xffff0000u);
}
DEVICE void unpack(u32 word, float* out, const float16*) {
    out[0] = widen(float16{(unsigned short)word});
    out[1] = widen(float16{(unsigned short)(word >> 16)});
}
DEVICE u32 pack(const float* in, const float*) { return __float_as_uint(in[0]); }
DEVICE u32 pack(const float* in, const bfloat16*) {
#if __CUDA_ARCH__ >= 800
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(in[1]), "f"(in[0]));
    return word;
#else
    bfloat16 low, high;
    narrow(in[0], low), narrow(in[1], high);
    return low.bits | (u32)high.bits << 16;
#endif
}
DEVICE u32 pack(const float* in, const float16*) {
    float16 low, high;
    narrow(in[0], low), narrow(in[1], high);
    return low.bits | (u32)high.bits << 16;
}

// ---------------------------------------------------------------- functions of one instruction

// 2^x to 2^-22; 0 at minus infinity, not a number where x is not.
DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x to one unit in the last place.
DEVICE float inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log x for x of 1 or more, to 2^-22 (not relative: near 1 the logarithm itself is near 0).
DEVICE float quick_log(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y * 0.6931471805599453f;
}

// log(1 + x) on [0, 1] to 2^-23: 2 artanh(s), s = x / (2 + x), by a polynomial in s^2 with an error of 2^-27.
DEVICE float log_one_plus(float x) {
    float s = x * inverse(2.0f + x), t = s * s;
    float sum = __fmaf_rn(t, 0.28011995f, 0.28001804f);
    sum = __fmaf_rn(t, sum, 0.40021527f);
    sum = __fmaf_rn(t, sum, 0.66666416f);
    return __fmaf_rn(s * t, sum, s + s);
}

// ---------------------------------------------------------------- talk among threads

DEVICE int lane_number() { return threadIdx.x & 31; }
DEVICE int warp_number() { return threadIdx.x >> 5; }

// What the lane whose number differs in the bit `distance` holds.
template <class T> DEVICE T exchange(const T& mine, int distance) {
    static_assert(sizeof(T) % 4 == 0, "whole words");
    T theirs;
    u32 words[sizeof(T) / 4];
    memcpy(words, &mine, sizeof(T));
#pragma unroll
    for (int i = 0; i < int(sizeof(T) / 4); i++) words[i] = __shfl_xor_sync(EVERY_LANE, words[i], distance);
    memcpy(&theirs, words, sizeof(T));
    return theirs;
}

DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }

// The blocks of a cluster reach into each other's shared memory (from compute capability 9).
DEVICE u32 rank_in_cluster() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
template <class T> DEVICE void put_at_peer(T* at, const T& value, u32 rank) {
    u32 address = (u32)__cvta_generic_to_shared(at), remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    u32 words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int i = 0; i < int(sizeof(T) / 4); i++)
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote + 4 * i), "r"(words[i]) : "memory");
}

// Counts arrivals from 0 to `last`, then starts again: true for the block that comes last.
DEVICE bool arrived_last(u32* ticket, u32 last) {
    __threadfence();
    bool done = atomicInc(ticket, last) == last;
    __threadfence();
    return done;
}
DEVICE void keep_smallest(i64* at, i64 value) { atomicMin(at, value); }
DEVICE i64 smallest_kept(const i64* at) { return *(volatile const i64*)at; }
DEVICE double read_fresh(const double* at) { return __ldcg(at); }
DEVICE void count_up(u32* at, u32 number) { atomicAdd(at, number); }
DEVICE u32 count_read(const u32* at) { return *(volatile const u32*)at; }
DEVICE void keep_smallest_key(u64* at, u64 key) { atomicMin(at, key); }
DEVICE u64 fresh_key(const u64* at) { return *(volatile const u64*)at; }
DEVICE u64 bits_of(double x) { return __double_as_longlong(x); }
DEVICE double number_with(u64 bits) { return __longlong_as_double(bits); }
DEVICE void tell_host(i64* at, i64 value) {
    *(volatile i64*)at = value;
    __threadfence_system();
}

// ---------------------------------------------------------------- looking things up

// How many of the ascending edges lie below x (right: or at it).
template <class T> DEVICE i64 bin_of(const T* edges, int count, T x, bool right) {
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        bool beyond = right ? !(edges[middle] > x) : !(edges[middle] >= x);
        if (beyond) low = middle + 1;
        else high = middle;
    }
    return low;
}
