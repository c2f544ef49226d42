// One pass over a block of values: range, sums, zeros, and the weighted sums of its rows for the sketch.
//
//   block of any type ──> vectors of float (double for integers) ──> Lanes ──> Totals ──> eight numbers
//
// The weights are those of sketch.py, bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// The dynamic linker of glibc picks the clone for the machine at hand.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define FASTEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define FASTEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FASTEST
#endif
#define INLINE static inline __attribute__((always_inline))

constexpr int64_t ROW = 1024, FOLDS = 2, NUMBERS = 8;
constexpr int64_t BLOCK = 64 * ROW;      // elements summed in float32 before they are added up in float64

static float COLUMNS[NUMBERS][ROW];

struct Totals {
    double high, low, total, squares;
    int64_t zeros;
    int64_t int_high, int_low;  // of 64-bit integers, where float64 is not exact; for uint64 the same bits
    int64_t row;                // the next row
    double folds[FOLDS][ROW];   // valid as far as the first row reaches, once it was added
};

// ---- weights -------------------------------------------------------------------------------------------------

INLINE float weight(uint64_t place, uint64_t seed) {
    uint64_t z = (place + 1) * 0x9E3779B97F4A7C15u + seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    const double smallest = 0.5, largest = (std::sqrt(45.0) - 1.0) / 4.0;
    double scaled = (largest - smallest) * (double(z >> 12) * 0x1p-52);
    double size = smallest + scaled;
    return float(z & 1 ? -size : size);
}

INLINE float row_weight(int64_t row, int fold) { return weight(uint64_t(row) * FOLDS + fold, 0x77696E6474756E6Eu); }

static void fill_columns() {
    for (int64_t i = 0; i < NUMBERS * ROW; i++) COLUMNS[i / ROW][i % ROW] = weight(i, 0x656C736B65746368u);
}

// ---- the pass ------------------------------------------------------------------------------------------------

template <class T> struct Vector {
    typedef T type __attribute__((vector_size(64)));
};
typedef Vector<float>::type Floats;
typedef Vector<double>::type Doubles;

struct Half {
    uint16_t bits;
};
struct Bfloat {
    uint16_t bits;
};
struct Bool {
    uint8_t value;
};

// The type in which a type's values are summed.
template <class S> struct Sum {
    typedef double type;  // of all integers
};
template <> struct Sum<float> {
    typedef float type;
};
template <> struct Sum<Half> : Sum<float> {};
template <> struct Sum<Bfloat> : Sum<float> {};
template <> struct Sum<Bool> : Sum<float> {};

template <class V> INLINE V read(const void *from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class S> INLINE Doubles load(const S *from) {
    typedef S Narrow __attribute__((vector_size(8 * sizeof(S))));
    typedef int32_t Ints8 __attribute__((vector_size(32)));
    if (sizeof(S) >= 4) return __builtin_convertvector(read<Narrow>(from), Doubles);
    Ints8 wide;
    for (int i = 0; i < 8; i++) wide[i] = from[i];
    return __builtin_convertvector(wide, Doubles);
}
INLINE Doubles load(const double *from) { return read<Doubles>(from); }
INLINE Floats load(const float *from) { return read<Floats>(from); }

typedef float Floats8 __attribute__((vector_size(32)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint16_t Shorts16 __attribute__((vector_size(32)));
typedef uint32_t Words16 __attribute__((vector_size(64)));

INLINE Floats load(const Bool *from) {
    typedef int32_t Ints16 __attribute__((vector_size(64)));
    const Words16 wide = __builtin_convertvector(__builtin_convertvector(read<Bytes16>(from), Shorts16), Words16);
    return __builtin_convertvector((Ints16)wide, Floats);  // step by step: GCC has no single step
}
INLINE Floats load(const Bfloat *from) {
    return (Floats)(__builtin_convertvector(read<Shorts16>(from), Words16) << 16);
}
INLINE Floats load(const Half *from) {
    const Words16 bits = __builtin_convertvector(read<Shorts16>(from), Words16), size = (bits & 0x7FFF) << 13;
    const Words16 finite = (Words16)((Floats)size * 0x1p112f);  // moves the exponent, subnormal numbers too
    const Words16 special = (Words16)(size >= 0x0F800000);      // infinity and NaN
    return (Floats)((special & (size | 0x7F800000)) | (~special & finite) | (bits & 0x8000) << 16);
}

INLINE void add_exactly(const Doubles &lanes, Doubles &sum) { sum += lanes; }

INLINE void add_exactly(const Floats &lanes, Doubles &sum) {
    Floats8 halves[2];
    std::memcpy(halves, &lanes, sizeof halves);
    sum += __builtin_convertvector(halves[0], Doubles) + __builtin_convertvector(halves[1], Doubles);
}

// Totals of a block, still one per lane.
template <class T> struct Lanes {
    typedef typename Vector<T>::type V;
    V high, low;
    decltype(V() == V()) zeros;
    Doubles total, squares;
};

// What R rows have in common: each column of the folds is read and written once for all of them.
template <int R, class S, class T>
INLINE void add_rows(const S *x, int64_t row, int64_t width, T *fold0, T *fold1, Lanes<T> &lanes) {
    typedef typename Vector<T>::type V;
    constexpr int64_t LANES = 64 / sizeof(T), CHUNK = 32 * LANES;
    T weights[FOLDS][R];
    for (int r = 0; r < R; r++)
        for (int fold = 0; fold < FOLDS; fold++) weights[fold][r] = T(row_weight(row + r, fold));
    Lanes<T> now = lanes;  // in registers
    for (int64_t start = 0; start < width; start += CHUNK) {  // short sums keep float32 exact enough
        V sum = {}, squares[R] = {};
        const int64_t end = start + CHUNK < width ? start + CHUNK : width;
        for (int64_t c = start; c < end; c += LANES) {
            V first = read<V>(fold0 + c), second = read<V>(fold1 + c);
            const V top = load(x + c);
            V most = top, least = top, part = top;
            for (int r = 0; r < R; r++) {
                const V a = r ? load(x + r * ROW + c) : top;
                most = a > most ? a : most;
                least = a < least ? a : least;
                now.zeros -= a == T(0);
                if (r) part += a;
                squares[r] += a * a;
                first += weights[0][r] * a;
                second += weights[1][r] * a;
            }
            now.high = most > now.high ? most : now.high;
            now.low = least < now.low ? least : now.low;
            sum += part;
            std::memcpy(fold0 + c, &first, sizeof first);
            std::memcpy(fold1 + c, &second, sizeof second);
        }
        add_exactly(sum, now.total);
        for (int r = 0; r < R; r++) add_exactly(squares[r], now.squares);
    }
    lanes = now;
}

template <class T> INLINE void add_lanes(const Lanes<T> &lanes, Totals &totals) {
    for (unsigned i = 0; i < 64 / sizeof(T); i++) {
        if (lanes.high[i] > totals.high) totals.high = lanes.high[i];
        if (lanes.low[i] < totals.low) totals.low = lanes.low[i];
        totals.zeros += lanes.zeros[i];
    }
    for (int i = 0; i < 8; i++) totals.total += lanes.total[i], totals.squares += lanes.squares[i];
}

template <class T> INLINE void add_one(T a, Totals &totals) {
    if (a > totals.high) totals.high = a;
    if (a < totals.low) totals.low = a;
    totals.zeros += a == T(0);
    totals.total += a;
    totals.squares += double(a) * double(a);
}

// The last few values of a last row, fewer than a vector.
template <class S, class T>
INLINE void add_rest(const S *x, int64_t row, int64_t n, T *fold0, T *fold1, Totals &totals) {
    S padded[64 / sizeof(T)] = {};
    std::memcpy(padded, x, n * sizeof(S));
    const typename Vector<T>::type values = load(padded);
    const T weight0 = T(row_weight(row, 0)), weight1 = T(row_weight(row, 1));
    for (int64_t i = 0; i < n; i++) {
        const T a = values[i];
        add_one(a, totals);
        fold0[i] += weight0 * a;
        fold1[i] += weight1 * a;
    }
}

// At most BLOCK values, beginning at a row.
template <class S> INLINE void add_values(const S *x, int64_t n, Totals &totals) {
    typedef typename Sum<S>::type T;
    constexpr int64_t LANES = 64 / sizeof(T);
    const bool is_first = totals.row == 0;
    Lanes<T> lanes = {};
    lanes.high -= std::numeric_limits<T>::infinity();
    lanes.low += std::numeric_limits<T>::infinity();
    // Writing to a fold must not look, by the last 12 bits of the address, like writing to what is read next.
    alignas(64) T space[4096 / sizeof(T) + 2 * ROW + 64];
    const uintptr_t ahead = (reinterpret_cast<uintptr_t>(x) - reinterpret_cast<uintptr_t>(space) + 2048) & 0xFC0;
    T *fold0 = space + ahead / sizeof(T), *fold1 = fold0 + ROW + 64;
    const int64_t used = n < ROW ? n : ROW;
    std::memset(fold0, 0, used * sizeof(T));
    std::memset(fold1, 0, used * sizeof(T));
    for (; n >= 4 * ROW; n -= 4 * ROW, x += 4 * ROW, totals.row += 4)
        add_rows<4>(x, totals.row, ROW, fold0, fold1, lanes);
    for (; n >= ROW; n -= ROW, x += ROW, totals.row++) add_rows<1>(x, totals.row, ROW, fold0, fold1, lanes);
    if (n) {
        const int64_t whole = n / LANES * LANES;
        if (whole) add_rows<1>(x, totals.row, whole, fold0, fold1, lanes);
        if (n > whole) add_rest(x + whole, totals.row, n - whole, fold0 + whole, fold1 + whole, totals);
        totals.row++;
    }
    add_lanes(lanes, totals);
    if (is_first)
        for (int64_t c = 0; c < used; c++) totals.folds[0][c] = fold0[c], totals.folds[1][c] = fold1[c];
    else
        for (int64_t c = 0; c < used; c++) totals.folds[0][c] += fold0[c], totals.folds[1][c] += fold1[c];
}

template <class S> INLINE void add_range(const S *x, int64_t n, Totals &totals) {
    S high = totals.row ? S(totals.int_high) : x[0], low = totals.row ? S(totals.int_low) : x[0];
    for (int64_t i = 0; i < n; i++) high = x[i] > high ? x[i] : high, low = x[i] < low ? x[i] : low;
    totals.int_high = int64_t(high), totals.int_low = int64_t(low);
}

// A whole tensor that is at most one row. Its folds are the values times two numbers, so none have to be kept.
template <class S> INLINE void measure_row(const S *x, int64_t n, Totals &totals, double *numbers) {
    typedef typename Sum<S>::type T;
    typedef typename Vector<T>::type V;
    constexpr int64_t LANES = 64 / sizeof(T);
    Lanes<T> lanes = {};
    lanes.high -= std::numeric_limits<T>::infinity();
    lanes.low += std::numeric_limits<T>::infinity();
    V sum = {}, squares = {}, sums[NUMBERS] = {}, weight = {};
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES) {
        const V a = load(x + c);
        lanes.high = a > lanes.high ? a : lanes.high;
        lanes.low = a < lanes.low ? a : lanes.low;
        lanes.zeros -= a == T(0);
        sum += a;
        squares += a * a;
        for (int k = 0; k < NUMBERS; k++) {
            for (int64_t i = 0; i < LANES; i++) weight[i] = T(COLUMNS[k][c + i]);
            sums[k] += weight * a;
        }
    }
    add_exactly(sum, lanes.total);
    add_exactly(squares, lanes.squares);
    for (int k = 0; k < NUMBERS; k++) {
        numbers[k] = 0;
        for (int64_t i = 0; i < LANES; i++) numbers[k] += double(sums[k][i]);
    }
    add_lanes(lanes, totals);
    S padded[LANES] = {};
    std::memcpy(padded, x + c, (n - c) * sizeof(S));
    const V rest = load(padded);
    for (int64_t i = 0; c + i < n; i++) {
        add_one(rest[i], totals);
        for (int k = 0; k < NUMBERS; k++) numbers[k] += double(COLUMNS[k][c + i]) * double(rest[i]);
    }
    for (int k = 0; k < NUMBERS; k++) numbers[k] *= double(row_weight(0, k / (NUMBERS / FOLDS)));
}

#define ADD(NAME, S, MORE)                                                                          \
    FASTEST static void NAME(const void *block, int64_t n, Totals &totals, double *numbers) {      \
        const S *x = static_cast<const S *>(block);                                                 \
        MORE;                                                                                       \
        if (numbers) measure_row(x, n, totals, numbers);                                            \
        else add_values(x, n, totals);                                                              \
    }
ADD(add_bool, Bool, )
ADD(add_i8, int8_t, )
ADD(add_u8, uint8_t, )
ADD(add_i16, int16_t, )
ADD(add_u16, uint16_t, )
ADD(add_i32, int32_t, )
ADD(add_u32, uint32_t, )
ADD(add_i64, int64_t, add_range(x, n, totals))
ADD(add_u64, uint64_t, add_range(x, n, totals))
ADD(add_half, Half, )
ADD(add_bfloat, Bfloat, )
ADD(add_float, float, )
ADD(add_double, double, )

// ---- with care -----------------------------------------------------------------------------------------------

struct Defects {
    int64_t nans, plus, minus;  // NaN, infinity, minus infinity
};

// The finite values in float64, where no square of a float overflows or vanishes; the others count as zero.
template <class S> INLINE void widen(const S *x, int64_t n, double *to, Defects &defects) {
    constexpr int64_t LANES = 16;
    Words16 nans = {}, infinite = {}, minus = {};
    for (int64_t i = 0; i < n; i += LANES) {
        S padded[LANES] = {};
        const bool is_whole = i + LANES <= n;
        if (!is_whole) std::memcpy(padded, x + i, (n - i) * sizeof(S));
        const Words16 bits = (Words16)(is_whole ? load(x + i) : load(padded)), size = bits & 0x7FFFFFFF;
        const Words16 is_nan = (Words16)(size > 0x7F800000), is_infinite = (Words16)(size == 0x7F800000);
        nans -= is_nan;
        infinite -= is_infinite;
        minus -= is_infinite & (Words16)(bits != size);
        const Floats finite = (Floats)(bits & ~(is_nan | is_infinite));
        for (int64_t k = 0; k < (is_whole ? LANES : n - i); k++) to[i + k] = double(finite[k]);
    }
    for (int64_t k = 0; k < LANES; k++) {
        defects.nans += nans[k];
        defects.minus += minus[k];
        defects.plus += infinite[k] - minus[k];
    }
}

// Like ADD; `space` holds as many doubles as there are values.
#define CARE(NAME, S)                                                                                            \
    FASTEST static void NAME(const void *block, int64_t n, double *space, Totals &totals, double *numbers,      \
                             Defects &defects) {                                                                 \
        widen(static_cast<const S *>(block), n, space, defects);                                                 \
        if (numbers) measure_row(space, n, totals, numbers);                                                     \
        else add_values(space, n, totals);                                                                       \
    }
CARE(care_half, Half)
CARE(care_bfloat, Bfloat)
CARE(care_float, float)

struct Type {
    char code;
    int size;
    bool is_single;  // summed in float
    void (*add)(const void *, int64_t, Totals &, double *);  // with numbers: a whole tensor, at most a row
    void (*care)(const void *, int64_t, double *, Totals &, double *, Defects &);
};
// As Python's struct module names them; E is bfloat16.
static const Type TYPES[] = {
    {'f', 4, true, add_float, care_float}, {'E', 2, true, add_bfloat, care_bfloat}, {'e', 2, true, add_half, care_half},
    {'d', 8, false, add_double, nullptr}, {'q', 8, false, add_i64, nullptr}, {'i', 4, false, add_i32, nullptr},
    {'?', 1, true, add_bool, nullptr}, {'b', 1, false, add_i8, nullptr}, {'B', 1, false, add_u8, nullptr},
    {'h', 2, false, add_i16, nullptr}, {'H', 2, false, add_u16, nullptr}, {'I', 4, false, add_u32, nullptr},
    {'Q', 8, false, add_u64, nullptr},
};

// The weighted sums of the columns, in the type that the values were summed in.
template <class T> INLINE void add_columns(const Totals &totals, int64_t used, double *numbers) {
    typedef typename Vector<T>::type V;
    constexpr int64_t LANES = 64 / sizeof(T);
    constexpr int EACH = NUMBERS / FOLDS;  // numbers that share a fold
    const int64_t whole = used / LANES * LANES;
    for (int fold = 0; fold < FOLDS; fold++) {
        const double *values = totals.folds[fold];
        const float(*columns)[ROW] = COLUMNS + fold * EACH;
        V sums[EACH] = {};
        for (int64_t c = 0; c < whole; c += LANES) {
            V value = {}, weight = {};
            for (int64_t i = 0; i < LANES; i++) value[i] = T(values[c + i]);
            for (int k = 0; k < EACH; k++) {
                for (int64_t i = 0; i < LANES; i++) weight[i] = T(columns[k][c + i]);
                sums[k] += weight * value;
            }
        }
        for (int k = 0; k < EACH; k++) {
            double sum = 0;
            for (int64_t i = 0; i < LANES; i++) sum += double(sums[k][i]);
            for (int64_t c = whole; c < used; c++) sum += double(columns[k][c]) * values[c];
            numbers[fold * EACH + k] = sum;
        }
    }
}

FASTEST static void finish_single(const Totals &totals, int64_t used, double *numbers) {
    add_columns<float>(totals, used, numbers);
}
FASTEST static void finish_double(const Totals &totals, int64_t used, double *numbers) {
    add_columns<double>(totals, used, numbers);
}
