// The names of device.cuh on a CPU, so that the kernels' logic can be tested without a GPU.
//
// Every thread of a block is a fiber with a stack of its own; fibers take turns at barriers and exchanges. Blocks run
// one after the other, the blocks of a cluster together. Slow, and exact about who waits for whom: a barrier that not
// all threads reach is an error here, where a GPU would hang.

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

namespace emulator {
struct Place { u32 x; };
struct Meeting { int arrived = 0; u64 round = 0; };
struct Block {
    std::vector<char> memory, dynamic;
    Meeting meeting;
    std::vector<Meeting> warps;
    std::vector<std::vector<char>> slots;  // of each warp: 32 lanes, 128 bytes each
};
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    Place thread, block;
    u32 rank;
    bool done = false;
};
static std::vector<Fiber> fibers;
static std::vector<Block> blocks;
static Meeting cluster_meeting;
static ucontext_t home;
static Fiber* current;
static Place grid;
static int threads_a_block;
static const std::function<void()>* work;

static void pass() { swapcontext(&current->context, &home); }
static Block& block() { return blocks[current->rank]; }

static void meet(Meeting& meeting, int expected) {
    u64 round = meeting.round;
    if (++meeting.arrived == expected) {
        meeting.arrived = 0, meeting.round++;
        return;
    }
    for (int turns = 0; meeting.round == round; turns++) {
        if (turns > 100000) fprintf(stderr, "not every thread came to a barrier\n"), abort();
        pass();
    }
}

static void begin() {
    (*work)();
    current->done = true;
    pass();
}

static void run(int block_count, int threads, int cluster, size_t shared, const std::function<void()>& body) {
    work = &body, grid = {(u32)block_count}, threads_a_block = threads;
    fibers.resize(threads * cluster);
    for (int first = 0; first < block_count; first += cluster) {
        blocks.assign(cluster, Block());
        for (Block& one : blocks) {
            one.memory.assign(1 << 16, (char)0xcd), one.dynamic.assign(shared + 16, (char)0xcd);
            one.warps.resize(threads / 32), one.slots.assign(threads / 32, std::vector<char>(32 * 128));
        }
        cluster_meeting = Meeting();
        int number = 0;
        for (Fiber& fiber : fibers) {
            fiber.stack.resize(1 << 16), fiber.done = false;
            fiber.rank = number / threads, fiber.thread = {(u32)(number % threads)}, fiber.block = {first + fiber.rank};
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data(), fiber.context.uc_stack.ss_size = fiber.stack.size();
            fiber.context.uc_link = &home;
            makecontext(&fiber.context, begin, 0);
            number++;
        }
        for (bool left = true; left;) {
            left = false;
            for (Fiber& fiber : fibers) {
                if (fiber.done) continue;
                current = &fiber, left = true;
                swapcontext(&home, &fiber.context);
            }
        }
    }
}
}  // namespace emulator

#define threadIdx (emulator::current->thread)
#define blockIdx (emulator::current->block)
#define gridDim (emulator::grid)
#define DEVICE static inline
#define RARELY static
#define KERNEL(threads, blocks) static void
#define CLUSTERED(blocks)
#define PARAMETER const
#define SHARED(type, name) type& name = *(type*)emulator::block().memory.data()
#define DYNAMIC_SHARED(name) char* name = emulator::block().dynamic.data()
#define INFINITE ((float)INFINITY)
#define NOT_A_NUMBER ((float)NAN)
static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }
#define __fmul_rn(a, b) ((a) * (b))
#define __fadd_rn(a, b) ((a) + (b))
#define __fmaf_rn(a, b, c) fmaf(a, b, c)

struct bfloat16 { unsigned short bits; };
struct float16 { unsigned short bits; };

template <class To, class From> static To as(From x) { To y; memcpy(&y, &x, sizeof(y)); return y; }
static float widen(float x) { return x; }
static float widen(bfloat16 x) { return as<float>((u32)x.bits << 16); }
static float widen(float16 x) { return (float)as<_Float16>(x.bits); }
static void narrow(float x, float& y) { y = x; }
static void narrow(float x, float16& y) { y.bits = as<unsigned short>((_Float16)x); }
static void narrow(float x, bfloat16& y) {
    u32 bits = as<u32>(x);
    y.bits = x != x ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
static u32 minus_infinities(const float*) { return 0xff800000u; }
static u32 minus_infinities(const bfloat16*) { return 0xff80ff80u; }
static u32 minus_infinities(const float16*) { return 0xfc00fc00u; }

template <int WORDS> struct alignas(4 * WORDS) Packet { u32 word[WORDS]; };
template <class T> static void aligned(const T* at) {
    if ((u64)at % sizeof(T)) fprintf(stderr, "an access of %zu bytes at %p\n", sizeof(T), (const void*)at), abort();
}
template <bool SECOND_LOOK, int WORDS> static Packet<WORDS> fetch(const Packet<WORDS>* at) { aligned(at); return *at; }
template <int WORDS> static void put(Packet<WORDS>* at, Packet<WORDS> x) { aligned(at); *at = x; }
template <int COUNT, class T> static void fetch_several(const T* at, T* out) {
    const int bytes = COUNT * sizeof(T);
    if ((u64)at % (bytes < 16 ? bytes : 16)) fprintf(stderr, "labels at %p\n", (const void*)at), abort();
    memcpy(out, at, bytes);
}
static void unpack(u32 word, float* out, const float*) { out[0] = as<float>(word); }
template <class T> static void unpack(u32 word, float* out, const T*) {
    out[0] = widen(T{(unsigned short)word}), out[1] = widen(T{(unsigned short)(word >> 16)});
}
static u32 pack(const float* in, const float*) { return as<u32>(in[0]); }
template <class T> static u32 pack(const float* in, const T*) {
    T low, high;
    narrow(in[0], low), narrow(in[1], high);
    return low.bits | (u32)high.bits << 16;
}

static float power_of_two(float x) { return exp2f(x); }
static float inverse(float x) { return 1 / x; }
static float quick_log(float x) { return logf(x); }
static float log_one_plus(float x) { return log1pf(x); }
static int lane_number() { return threadIdx.x & 31; }
static int warp_number() { return threadIdx.x >> 5; }
static void block_barrier() { emulator::meet(emulator::block().meeting, emulator::threads_a_block); }
static void warp_barrier() { emulator::meet(emulator::block().warps[warp_number()], 32); }
template <class T> static T exchange(const T& mine, int distance) {
    static_assert(sizeof(T) <= 128 && sizeof(T) % 4 == 0, "whole words");
    std::vector<char>& slots = emulator::block().slots[warp_number()];
    memcpy(&slots[lane_number() * 128], &mine, sizeof(T));
    warp_barrier();
    T theirs;
    memcpy(&theirs, &slots[(lane_number() ^ distance) * 128], sizeof(T));
    warp_barrier();
    return theirs;
}
static u32 rank_in_cluster() { return emulator::current->rank; }
static void cluster_barrier() { emulator::meet(emulator::cluster_meeting, emulator::fibers.size()); }
template <class T> static void put_at_peer(T* at, const T& value, u32 rank) {
    memcpy(emulator::blocks[rank].memory.data() + ((char*)at - emulator::block().memory.data()), &value, sizeof(T));
}
static bool arrived_last(u32* ticket, u32 last) {
    bool done = *ticket == last;
    *ticket = done ? 0 : *ticket + 1;
    return done;
}
static void keep_smallest(i64* at, i64 value) { if (value < *at) *at = value; }
static i64 smallest_kept(const i64* at) { return *at; }
static double read_fresh(const double* at) { return *at; }
static void count_up(u32* at, u32 number) { *at += number; }
static u32 count_read(const u32* at) { return *at; }
static void keep_smallest_key(u64* at, u64 key) { if (key < *at) *at = key; }
static u64 fresh_key(const u64* at) { return *at; }
static u64 bits_of(double x) { return as<u64>(x); }
static double number_with(u64 bits) { return as<double>(bits); }
static void tell_host(i64* at, i64 value) { *at = value; }

template <class T> static i64 bin_of(const T* edges, int count, T x, bool right) {
    i64 below = 0;
    while (below < count && (right ? !(edges[below] > x) : !(edges[below] >= x))) below++;
    return below;
}

#define ENTRY(name)                                                                                    \
    extern "C" void emulate_##name(const void* call, int blocks, int threads, int cluster, int shared) { \
        emulator::run(blocks, threads, cluster, shared, [call] { name(*(decltype(first_argument(name)))call); }); \
    }
template <class T> static const T* first_argument(void (*)(T));
