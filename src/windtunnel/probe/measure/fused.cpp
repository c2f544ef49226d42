// All figures of one tensor in a single pass over its memory: windtunnel.probe.measure.fused.
//
//   address, type, shape, strides ──> blocks in C order (fused_gather.h) ──> one pass each (fused_pass.h) ──> figures
//
// Optional: without it windtunnel.probe.measure.array_totals computes the same with numpy, pass by pass. Written with the vector
// types of GCC; the caller vouches for the address.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <charconv>
#include <cstdio>

#include "fused_gather.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static const Type *find_type(PyObject *name) {
    Py_ssize_t length = 0;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text && length == 1)
        for (const Type &type : TYPES)
            if (type.code == text[0]) return &type;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "type must be one of ? b B h H i I q Q e E f d");
    return nullptr;
}

// A tensor's first to last element must lie in the memory there is: a storage can be made smaller under its tensors.
static bool is_inside(const Geometry &g, int size, long long n_bytes) {
    int64_t last = 0;
    for (int d = 0; d < g.dims; d++) {
        if (g.strides[d] < 0) return false;
        last += (g.shape[d] - 1) * g.strides[d];
    }
    return last + size <= n_bytes;
}

static bool read_geometry(PyObject *shape, PyObject *strides, int size, Geometry &g) {
    if (!PyTuple_Check(shape) || !PyTuple_Check(strides) || PyTuple_GET_SIZE(shape) != PyTuple_GET_SIZE(strides) ||
        PyTuple_GET_SIZE(shape) > MAX_DIMS) {
        PyErr_SetString(PyExc_TypeError, "shape and strides must be tuples of one length, at most 64");
        return false;
    }
    g.dims = int(PyTuple_GET_SIZE(shape));
    g.count = 1;
    for (int d = 0; d < g.dims; d++) {
        g.shape[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, d));
        g.strides[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, d)) * size;
        if (g.shape[d] < 0) PyErr_SetString(PyExc_ValueError, "a dimension is negative");
        g.count *= g.shape[d];
    }
    merge_dims(g);
    return !PyErr_Occurred();
}

static PyObject *range_end(char code, double value, int64_t exact) {
    switch (code) {
        case 'f': case 'd': case 'e': case 'E': return PyFloat_FromDouble(value);
        case '?': return PyBool_FromLong(value != 0);
        case 'q': return PyLong_FromLongLong(exact);
        case 'Q': return PyLong_FromUnsignedLongLong(uint64_t(exact));
        default: return PyLong_FromDouble(value);
    }
}

static PyObject *tuple_of(const double *numbers) {
    PyObject *sketch = PyTuple_New(NUMBERS);
    for (int k = 0; sketch && k < NUMBERS; k++) PyTuple_SET_ITEM(sketch, k, PyFloat_FromDouble(numbers[k]));
    return sketch;
}

// As needs_care in array_totals.py.
static bool needs_care(const Totals &t, int64_t n, bool is_single) {
    const double large = is_single ? 1e30 : 1e300;
    if (t.squares < double(n) * (is_single ? 1e-31 : 1e-292)) return t.high != 0 || t.low != 0;
    return !(-large < t.low && t.low <= t.high && t.high < large && t.squares < INFINITY && std::isfinite(t.total));
}

static bool add_checksum(PyObject *function, PyObject **checksum, const char *block, int64_t n_bytes) {
    PyObject *view = PyMemoryView_FromMemory(const_cast<char *>(block), n_bytes, PyBUF_READ);
    PyObject *next = view ? PyObject_CallFunctionObjArgs(function, view, *checksum, nullptr) : nullptr;
    Py_XDECREF(view);
    if (!next) return false;
    Py_SETREF(*checksum, next);
    return true;
}

// The tensor in C order, block by block: in place if it lies so, else copied.
struct Blocks {
    const char *base;
    const Geometry &g;
    const int size;
    int64_t n_block = BLOCK, start = -1, count = 0;
    char *copy = nullptr;
    bool is_ready = true;

    Blocks(const char *base, const Geometry &g, int size) : base(base), g(g), size(size) {
        if (contiguous(g, size)) return;
        n_block = block_of(g, size);
        copy = static_cast<char *>(PyMem_RawMalloc(size_t(n_block) * size));
        is_ready = copy != nullptr;
    }
    ~Blocks() { PyMem_RawFree(copy); }

    bool next() {
        start = start < 0 ? 0 : start + n_block;
        count = least(g.count - start, n_block);
        return start < g.count;
    }
    const char *read() {
        if (!copy) return base + start * size;
        gather_bytes(base, g, size, start, count, copy);
        return copy;
    }
};

// Once more in float64, around NaN and infinity; the range and the zeros of the first pass hold.
static bool measure_with_care(const Type &type, const char *base, const Geometry &g, bool is_row, Totals &totals,
                              double *numbers, Defects &defects) {
    Blocks blocks(base, g, type.size);
    double *space = static_cast<double *>(PyMem_RawMalloc(size_t(least(g.count, BLOCK)) * sizeof(double)));
    if (!space || !blocks.is_ready) {
        PyMem_RawFree(space);
        PyErr_NoMemory();
        return false;
    }
    const double high = totals.high, low = totals.low;
    const int64_t zeros = totals.zeros;
    totals = {-INFINITY, INFINITY};
    PyThreadState *state = PyEval_SaveThread();
    while (blocks.next()) {
        const char *block = blocks.read();
        for (int64_t i = 0; i < blocks.count; i += BLOCK)
            type.care(block + i * type.size, least(blocks.count - i, BLOCK), space, totals, is_row ? numbers : nullptr,
                      defects);
    }
    PyEval_RestoreThread(state);
    PyMem_RawFree(space);
    totals.high = defects.nans ? NAN : high;
    totals.low = defects.nans ? NAN : low;
    totals.zeros = zeros;
    if (defects.nans || (defects.plus && defects.minus)) totals.total = NAN;
    else if (defects.plus) totals.total = INFINITY;
    else if (defects.minus) totals.total = -INFINITY;
    if (defects.nans) totals.squares = NAN;
    else if (defects.plus || defects.minus) totals.squares = INFINITY;
    return true;
}

static PyObject *measure(PyObject *, PyObject *const *args, Py_ssize_t n_args) {
    if (n_args != 6) {
        PyErr_SetString(PyExc_TypeError, "measure(address, bytes there, type, shape, strides, checksum function or None)");
        return nullptr;
    }
    const long long n_bytes = PyLong_AsLongLong(args[1]);
    PyObject *const function = args[5];
    const char *base = static_cast<const char *>(PyLong_AsVoidPtr(args[0]));
    if (PyErr_Occurred()) return nullptr;
    const Type *type = find_type(args[2]);
    Geometry g;
    if (!type || !read_geometry(args[3], args[4], type->size, g)) return nullptr;
    const int size = type->size;
    if (g.count == 0 || base == nullptr || (n_bytes >= 0 && !is_inside(g, size, n_bytes))) {
        PyErr_SetString(PyExc_ValueError, "there is nothing to measure, or not all of it is in memory");
        return nullptr;
    }

    const bool is_row = g.count <= ROW;
    Totals totals = {-INFINITY, INFINITY};
    double numbers[NUMBERS];
    PyObject *checksum = function == Py_None ? nullptr : PyLong_FromLong(0);
    Blocks blocks(base, g, size);
    bool good = blocks.is_ready;
    if (!good) PyErr_NoMemory();
    while (good && blocks.next()) {
        PyThreadState *state = blocks.count > 4 * ROW ? PyEval_SaveThread() : nullptr;
        const char *block = blocks.read();
        for (int64_t i = 0; i < blocks.count; i += BLOCK)
            type->add(block + i * size, least(blocks.count - i, BLOCK), totals, is_row ? numbers : nullptr);
        if (state) PyEval_RestoreThread(state);
        if (checksum) good = add_checksum(function, &checksum, block, blocks.count * size);
    }
    Defects defects = {};
    const bool has_care = good && needs_care(totals, g.count, type->is_single);
    if (has_care && type->care) good = measure_with_care(*type, base, g, is_row, totals, numbers, defects);
    if (!good || (has_care && !type->care)) {
        Py_XDECREF(checksum);
        if (good) Py_RETURN_NONE;
        return nullptr;
    }
    PyObject *hash = nullptr;
    if (checksum) {
        char digits[16];
        std::snprintf(digits, sizeof digits, "%08lx", PyLong_AsUnsignedLong(checksum) & 0xFFFFFFFFul);
        hash = PyUnicode_FromString(digits);
        Py_DECREF(checksum);
    }
    if (!is_row) (type->is_single && !has_care ? finish_single : finish_double)(totals, ROW, numbers);
    const bool is_bool = type->code == '?';
    return Py_BuildValue("(NNNNLLLNN)", range_end(type->code, totals.high, totals.int_high),
                         range_end(type->code, totals.low, totals.int_low),
                         is_bool ? Py_NewRef(Py_None) : PyFloat_FromDouble(totals.total / double(g.count)),
                         is_bool ? Py_NewRef(Py_None) : PyFloat_FromDouble(std::sqrt(totals.squares)),
                         (long long)defects.nans, (long long)(defects.plus + defects.minus),
                         (long long)totals.zeros, tuple_of(numbers), checksum ? hash : Py_NewRef(Py_None));
}

static PyObject *see(PyObject *, PyObject *const *args, Py_ssize_t n_args) {
    if (n_args != 4) {
        PyErr_SetString(PyExc_TypeError, "glimpse(address, size of an element, shape, strides)");
        return nullptr;
    }
    const char *base = static_cast<const char *>(PyLong_AsVoidPtr(args[0]));
    const long size = PyLong_AsLong(args[1]);
    Geometry g;
    if (PyErr_Occurred() || !read_geometry(args[2], args[3], int(size), g)) return nullptr;
    if (g.count == 0 || base == nullptr || (size != 1 && size != 2 && size != 4 && size != 8)) {
        PyErr_SetString(PyExc_ValueError, "there is nothing to see");
        return nullptr;
    }
    char seen[ALL_SEEN];
    return PyBytes_FromStringAndSize(seen, glimpse(base, g, int(size), seen));
}

static PyObject *text(PyObject *, PyObject *numbers) {
    if (!PyTuple_Check(numbers) || PyTuple_GET_SIZE(numbers) > 64) {
        PyErr_SetString(PyExc_TypeError, "text wants a tuple of at most 64 numbers");
        return nullptr;
    }
    char out[64 * 32], *end = out;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++) {
        const double value = PyFloat_AsDouble(PyTuple_GET_ITEM(numbers, i));
        if (PyErr_Occurred()) return nullptr;
        if (i) *end++ = ',', *end++ = ' ';
#ifdef __cpp_lib_to_chars
        end = std::to_chars(end, end + 24, value, std::chars_format::scientific, 7).ptr;
#else
        end += std::snprintf(end, 24, "%.7e", value);
#endif
    }
    return PyUnicode_FromStringAndSize(out, end - out);
}

static PyMethodDef METHODS[] = {
    {"text", text, METH_O, "text(tuple of finite floats) -> the numbers, with eight digits, between commas"},
    {"glimpse", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(see)), METH_FASTCALL,
     "glimpse(address, size of an element, shape, strides) -> all bytes of a small tensor, some of a large one"},
    {"measure", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(measure)), METH_FASTCALL,
     "measure(address, bytes there or -1, type, shape, strides, checksum function) -> the fields of Statistics, or None if "
     "sums in the type at hand lose something"},
    {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "fused", "All figures of a tensor in one pass.", -1, METHODS,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit_fused() {
    fill_columns();
    return PyModule_Create(&MODULE);
}
