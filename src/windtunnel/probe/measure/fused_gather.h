// Elements of a tensor of any strides, in C order.
//
//   address, shape, strides ──> Geometry ──> gather: a block of elements side by side
//                                       └──> glimpse: a few elements, spread evenly
#pragma once

#include "fused_pass.h"

constexpr int64_t MOST_COPIED = 1 << 23;  // elements copied at a time where a small block would read memory in vain
constexpr int64_t GLIMPSES = 32, ALL_SEEN = 1024;  // elements; bytes of a tensor that a glimpse sees whole
constexpr int MAX_DIMS = 64;

struct Geometry {
    int dims;
    int64_t count, shape[MAX_DIMS], strides[MAX_DIMS];  // strides in bytes; neighbours that are one run are merged
};

static bool contiguous(const Geometry &g, int size) {
    return g.dims == 0 || (g.dims == 1 && g.strides[0] == size);
}

static void merge_dims(Geometry &g) {
    int kept = 0;
    for (int d = 0; d < g.dims; d++) {
        if (g.shape[d] == 1) continue;
        if (kept && g.strides[kept - 1] == g.shape[d] * g.strides[d]) {
            g.shape[kept - 1] *= g.shape[d];
            g.strides[kept - 1] = g.strides[d];
        } else {
            g.shape[kept] = g.shape[d];
            g.strides[kept++] = g.strides[d];
        }
    }
    g.dims = kept;
}

#if defined(__clang__)  // has no shuffle whose places are computed
constexpr bool CAN_SHUFFLE = false;
template <class S> INLINE void transpose(const char *, int64_t, S *, int64_t) {}
#else
constexpr bool CAN_SHUFFLE = true;

// n lines of n elements at `from`, `step` bytes apart, to n lines at `to`: rows become columns.
template <class S> INLINE void transpose(const char *from, int64_t step, S *to, int64_t to_step) {
    typedef typename Vector<S>::type V;
    constexpr int n = 64 / sizeof(S);
    V lines[n], mixed[n], low, high;
    for (int i = 0; i < n; i++) low[i] = i / 2 + (i % 2) * n, high[i] = low[i] + n / 2;
    for (int i = 0; i < n; i++) lines[i] = read<V>(from + i * step);
    for (int round = 1; round < n; round *= 2) {  // each round interleaves the first half of the lines with the second
        for (int i = 0; i < n / 2; i++) {
            mixed[2 * i] = __builtin_shuffle(lines[i], lines[i + n / 2], low);
            mixed[2 * i + 1] = __builtin_shuffle(lines[i], lines[i + n / 2], high);
        }
        for (int i = 0; i < n; i++) lines[i] = mixed[i];
    }
    for (int i = 0; i < n; i++) std::memcpy(to + i * to_step, &lines[i], sizeof(V));
}
#endif

template <class S>
INLINE void copy_slowly(const char *from, S *to, int64_t rows, int64_t columns, int64_t row_step, int64_t step,
                        int64_t to_step) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            std::memcpy(to + r * to_step + c, from + r * row_step + c * step, sizeof(S));
}

// rows x columns elements to consecutive places.
template <class S>
INLINE void copy_plane(const char *from, S *to, int64_t rows, int64_t columns, int64_t row_step, int64_t step) {
    if (step == int64_t(sizeof(S))) {
        for (int64_t r = 0; r < rows; r++) std::memcpy(to + r * columns, from + r * row_step, columns * sizeof(S));
        return;
    }
    constexpr int64_t TILE = 64 / sizeof(S) < 16 ? 8 : 16;
    for (int64_t c = 0; c < columns; c += TILE) {
        const int64_t width = columns - c < TILE ? columns - c : TILE;
        for (int64_t r = 0; r < rows; r += TILE) {
            const int64_t height = rows - r < TILE ? rows - r : TILE;
            const char *corner = from + r * row_step + c * step;
            if (CAN_SHUFFLE && sizeof(S) >= 4 && row_step == int64_t(sizeof(S)) && width == TILE && height == TILE)
                transpose(corner, step, to + r * columns + c, columns);
            else
                copy_slowly(corner, to + r * columns + c, height, width, row_step, step, columns);
        }
    }
}

// Elements to copy at a time. Where memory runs along the second last dimension, a row of the copy reads one element
// of every cache line it touches, so as many rows are copied as a cache line serves.
static int64_t block_of(const Geometry &g, int size) {
    const int64_t rows = g.dims > 1 && g.strides[g.dims - 2] == size ? 64 / size : 1;
    const int64_t wanted = (rows * g.shape[g.dims - 1] + ROW - 1) / ROW * ROW;
    const int64_t block = rows == 1 || wanted < BLOCK ? BLOCK : wanted < MOST_COPIED ? wanted : MOST_COPIED;
    return block < g.count ? block : g.count;
}

template <class S> INLINE void gather(const char *base, const Geometry &g, int64_t start, int64_t count, S *to) {
    const int64_t columns = g.shape[g.dims - 1], step = g.strides[g.dims - 1];
    const int64_t rows = g.dims > 1 ? g.shape[g.dims - 2] : 1, row_step = g.dims > 1 ? g.strides[g.dims - 2] : 0;
    while (count) {
        const int64_t column = start % columns, row = start / columns % rows;
        const char *from = base + row * row_step + column * step;
        int64_t plane = start / columns / rows;
        for (int d = g.dims - 3; d >= 0; d--) {
            from += plane % g.shape[d] * g.strides[d];
            plane /= g.shape[d];
        }
        int64_t n_rows = 1, n_columns = columns - column < count ? columns - column : count;
        if (n_columns == columns) n_rows = count / columns < rows - row ? count / columns : rows - row;
        copy_plane(from, to, n_rows, n_columns, row_step, step);
        start += n_rows * n_columns, count -= n_rows * n_columns, to += n_rows * n_columns;
    }
}

FASTEST static void gather_words(const char *base, const Geometry &g, int64_t start, int64_t count, uint32_t *to) {
    gather(base, g, start, count, to);
}

static void gather_bytes(const char *base, const Geometry &g, int size, int64_t start, int64_t count, char *to) {
    switch (size) {
        case 1: return gather(base, g, start, count, reinterpret_cast<uint8_t *>(to));
        case 2: return gather(base, g, start, count, reinterpret_cast<uint16_t *>(to));
        case 4: return gather_words(base, g, start, count, reinterpret_cast<uint32_t *>(to));
        case 8: return gather(base, g, start, count, reinterpret_cast<uint64_t *>(to));
    }
}

// Copies all bytes of a small tensor, else GLIMPSES elements from the first to the last; returns the number of bytes.
static int64_t glimpse(const char *base, const Geometry &g, int size, char *to) {
    if (g.count * size <= ALL_SEEN) {
        if (contiguous(g, size)) std::memcpy(to, base, g.count * size);
        else gather_bytes(base, g, size, 0, g.count, to);
        return g.count * size;
    }
    for (int64_t i = 0; i < GLIMPSES; i++) {
        int64_t place = (g.count - 1) / (GLIMPSES - 1) * i + (g.count - 1) % (GLIMPSES - 1) * i / (GLIMPSES - 1);
        const char *from = base;
        for (int d = g.dims - 1; d >= 0; d--) {
            from += place % g.shape[d] * g.strides[d];
            place /= g.shape[d];
        }
        std::memcpy(to + i * size, from, size);
    }
    return GLIMPSES * size;
}
