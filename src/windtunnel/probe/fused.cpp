// All figures of one tensor in a single pass over its memory: windtunnel.probe.fused.
//
//   address, type, shape, strides ──> blocks in C order (fused_gather.h) ──> one pass each (fused_pass.h) ──> figures
//
// Optional: without it windtunnel.probe.array_totals computes the same with numpy, pass by pass. Written with the vector
// types of GCC; the caller vouches for the address.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fused_gather.h"

static const Type *find_type(PyObject *name) {
    Py_ssize_t length = 0;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text && length == 1)
        for (const Type &type : TYPES)
            if (type.code == text[0]) return &type;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "type must be one of ? b B h H i I q Q e E f d");
    return nullptr;
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

static bool add_checksum(PyObject *function, PyObject **checksum, const char *block, int64_t n_bytes) {
    PyObject *view = PyMemoryView_FromMemory(const_cast<char *>(block), n_bytes, PyBUF_READ);
    PyObject *next = view ? PyObject_CallFunctionObjArgs(function, view, *checksum, nullptr) : nullptr;
    Py_XDECREF(view);
    if (!next) return false;
    Py_SETREF(*checksum, next);
    return true;
}

static PyObject *measure(PyObject *, PyObject *const *args, Py_ssize_t n_args) {
    if (n_args != 5) {
        PyErr_SetString(PyExc_TypeError, "measure(address, type, shape, strides, checksum function or None)");
        return nullptr;
    }
    const char *base = static_cast<const char *>(PyLong_AsVoidPtr(args[0]));
    if (PyErr_Occurred()) return nullptr;
    const Type *type = find_type(args[1]);
    Geometry g;
    if (!type || !read_geometry(args[2], args[3], type->size, g)) return nullptr;
    const int size = type->size;
    if (g.count == 0 || base == nullptr) {
        PyErr_SetString(PyExc_ValueError, "there is nothing to measure");
        return nullptr;
    }

    Totals totals;
    const int64_t used = g.count < ROW ? g.count : ROW;
    for (int fold = 0; fold < FOLDS; fold++) std::memset(totals.folds[fold], 0, used * sizeof(double));
    totals.high = -INFINITY, totals.low = INFINITY, totals.total = totals.squares = 0;
    totals.zeros = totals.row = totals.int_high = totals.int_low = 0;

    PyObject *checksum = nullptr;
    char *copy = nullptr;
    int64_t n_block = BLOCK;
    if (args[4] != Py_None) checksum = PyLong_FromLong(0);
    if (!contiguous(g, size)) {
        n_block = block_of(g, size);
        copy = static_cast<char *>(PyMem_RawMalloc(size_t(n_block) * size));
        if (!copy) return Py_XDECREF(checksum), PyErr_NoMemory();
    }
    bool good = true;
    for (int64_t start = 0; good && start < g.count; start += n_block) {
        const int64_t count = g.count - start < n_block ? g.count - start : n_block;
        const char *block = copy ? copy : base + start * size;
        PyThreadState *state = count > 4 * ROW ? PyEval_SaveThread() : nullptr;
        if (copy) gather_bytes(base, g, size, start, count, copy);
        for (int64_t i = 0; i < count; i += BLOCK)
            type->add(block + i * size, count - i < BLOCK ? count - i : BLOCK, totals);
        if (state) PyEval_RestoreThread(state);
        if (checksum) good = add_checksum(args[4], &checksum, block, count * size);
    }
    PyMem_RawFree(copy);
    if (!good) return Py_XDECREF(checksum), nullptr;

    double numbers[NUMBERS];
    finish_sketch(totals, used, numbers);
    PyObject *sketch = PyTuple_New(NUMBERS);
    for (int k = 0; sketch && k < NUMBERS; k++) PyTuple_SET_ITEM(sketch, k, PyFloat_FromDouble(numbers[k]));
    return Py_BuildValue("(NNddLNN)", range_end(type->code, totals.high, totals.int_high),
                         range_end(type->code, totals.low, totals.int_low), totals.total, totals.squares,
                         (long long)totals.zeros, sketch, checksum ? checksum : Py_NewRef(Py_None));
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

static PyMethodDef METHODS[] = {
    {"glimpse", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(see)), METH_FASTCALL,
     "glimpse(address, size of an element, shape, strides) -> all bytes of a small tensor, some of a large one"},
    {"measure", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(measure)), METH_FASTCALL,
     "measure(address, type, shape, strides, checksum) -> (max, min, sum, squares, zeros, sketch, checksum)"},
    {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "fused", "All figures of a tensor in one pass.", -1, METHODS,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit_fused() {
    fill_columns();
    return PyModule_Create(&MODULE);
}
