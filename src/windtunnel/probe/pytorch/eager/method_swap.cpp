// Put a recorder into a method that is written in C, no matter who holds a reference to it: windtunnel.probe.pytorch.eager.method_swap.
//
//   swap(method, recorder) ──> method(*args) ──> recorder(original, (class, *args), kwargs) ──> restore()
//
// What windtunnel.probe.collect.code_swap does to functions of Python, for the one method of C that wants it: the apply of
// autograd functions, which programs bind to names before there is a debugger. Every such name reaches the function by the
// same definition, so that is where it is exchanged. Optional: without it the attribute of the class is replaced.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyMethodDef *swapped = nullptr;
static PyCFunctionWithKeywords original = nullptr;
static PyObject *recorder = nullptr, *call_original = nullptr;

static PyCFunction plain(PyCFunctionWithKeywords function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

static PyObject *stand_in(PyObject *cls, PyObject *args, PyObject *kwargs) {
    if (!recorder) return original(cls, args, kwargs);
    const Py_ssize_t n = PyTuple_GET_SIZE(args);
    PyObject *all = PyTuple_New(n + 1), *named = kwargs ? Py_NewRef(kwargs) : PyDict_New(), *result = nullptr;
    if (all && named) {
        PyTuple_SET_ITEM(all, 0, Py_NewRef(cls));
        for (Py_ssize_t i = 0; i < n; i++) PyTuple_SET_ITEM(all, i + 1, Py_NewRef(PyTuple_GET_ITEM(args, i)));
        PyObject *called = Py_NewRef(recorder);  // it may be taken out while it runs
        result = PyObject_CallFunctionObjArgs(called, call_original, all, named, nullptr);
        Py_DECREF(called);
    }
    Py_XDECREF(all);
    Py_XDECREF(named);
    return result;
}

static PyObject *call(PyObject *, PyObject *args, PyObject *kwargs) {
    if (!original || PyTuple_GET_SIZE(args) < 1) {
        PyErr_SetString(PyExc_TypeError, "no method was swapped, or its class is missing");
        return nullptr;
    }
    PyObject *rest = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
    if (!rest) return nullptr;
    PyObject *result = original(PyTuple_GET_ITEM(args, 0), rest, kwargs);
    Py_DECREF(rest);
    return result;
}

static PyObject *swap(PyObject *, PyObject *args) {
    PyObject *method, *wanted;
    if (!PyArg_ParseTuple(args, "OO", &method, &wanted)) return nullptr;
    if (!PyCFunction_Check(method)) Py_RETURN_FALSE;
    PyMethodDef *found = reinterpret_cast<PyCFunctionObject *>(method)->m_ml;
    const int shape = found->ml_flags & ~(METH_CLASS | METH_STATIC | METH_COEXIST);
    if (shape != (METH_VARARGS | METH_KEYWORDS)) Py_RETURN_FALSE;
    if (swapped) Py_RETURN_NONE;
    Py_XSETREF(recorder, Py_NewRef(wanted));
    swapped = found;
    original = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(found->ml_meth));
    found->ml_meth = plain(stand_in);
    Py_RETURN_TRUE;
}

static PyObject *restore(PyObject *, PyObject *) {
    if (swapped) swapped->ml_meth = plain(original);
    swapped = nullptr;
    Py_CLEAR(recorder);  // a call that has just begun in another thread goes straight to the original
    Py_RETURN_NONE;
}

static PyObject *is_swapped(PyObject *, PyObject *) { return PyBool_FromLong(swapped != nullptr); }

static PyMethodDef METHODS[] = {
    {"swap", swap, METH_VARARGS,
     "swap(method of C, recorder) -> True: recorder(original, args, kwargs) is called in its place from now on; None: a "
     "method is swapped already; False: not a method that can be"},
    {"is_swapped", is_swapped, METH_NOARGS, "is_swapped() -> whether a recorder is in place"},
    {"restore", restore, METH_NOARGS, "restore() gives the method its own function back"},
    {"call", plain(call), METH_VARARGS | METH_KEYWORDS, "call(class, *args, **kwargs) calls the method as it was"},
    {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "method_swap", "A recorder in place of a method of C.", -1, METHODS,
                             nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit_method_swap() {
    PyObject *module = PyModule_Create(&MODULE);
    if (module) call_original = PyObject_GetAttrString(module, "call");
    return module;
}
