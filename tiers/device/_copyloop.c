/* Copies between two buffers in one call that holds no interpreter lock: `memcopy.py` says why and when. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { DESTINATION, SOURCE, TO, AT, LENGTHS, BUFFERS };

/* Whether `length` bytes from `start` lie within `size`. */
static int within(int64_t start, int64_t length, Py_ssize_t size)
{
    return start >= 0 && length >= 0 && length <= size && start <= size - length;
}

/* The first run that leaves a buffer, or -1. */
static Py_ssize_t first_outside(const Py_buffer *buffers, const int64_t *to, const int64_t *at, const int64_t *lengths,
                                Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (!within(to[i], lengths[i], buffers[DESTINATION].len) || !within(at[i], lengths[i], buffers[SOURCE].len))
            return i;
    return -1;
}

static int copy(const Py_buffer *buffers)
{
    Py_ssize_t nbytes = buffers[LENGTHS].len, count = nbytes / (Py_ssize_t)sizeof(int64_t);
    if (nbytes % (Py_ssize_t)sizeof(int64_t) || buffers[TO].len != nbytes || buffers[AT].len != nbytes) {
        PyErr_SetString(PyExc_ValueError, "the three columns must be int64 and equally long");
        return -1;
    }
    const int64_t *to = buffers[TO].buf, *at = buffers[AT].buf, *lengths = buffers[LENGTHS].buf;
    Py_ssize_t outside = first_outside(buffers, to, at, lengths, count);
    if (outside >= 0) {
        PyErr_Format(PyExc_ValueError, "run %zd: %lld bytes from %lld to %lld leave %zd or %zd bytes", outside,
                     (long long)lengths[outside], (long long)at[outside], (long long)to[outside], buffers[SOURCE].len,
                     buffers[DESTINATION].len);
        return -1;
    }
    char *destination = buffers[DESTINATION].buf;
    const char *source = buffers[SOURCE].buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++)
        memmove(destination + to[i], source + at[i], (size_t)lengths[i]);
    Py_END_ALLOW_THREADS
    return 0;
}

static PyObject *copy_runs(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    Py_buffer buffers[BUFFERS];
    int held = 0, result = -1;
    (void)module;
    if (given != BUFFERS)
        return PyErr_Format(PyExc_TypeError, "copy_runs takes %d arguments, not %zd", (int)BUFFERS, given);
    while (held < BUFFERS &&
           !PyObject_GetBuffer(args[held], &buffers[held], held == DESTINATION ? PyBUF_WRITABLE : PyBUF_SIMPLE))
        held++;
    if (held == BUFFERS)
        result = copy(buffers);
    while (held > 0)
        PyBuffer_Release(&buffers[--held]);
    if (result < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"copy_runs", (PyCFunction)(void (*)(void))copy_runs, METH_FASTCALL,
     "copy_runs(destination, source, destinations, sources, lengths)\n\n"
     "Copy lengths[i] bytes at sources[i] of `source` to destinations[i] of `destination`, in order, for every i.\n"
     "Columns are int64, in bytes. ValueError when a run leaves a buffer; then nothing was copied."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_copyloop", .m_size = 0, .m_methods = methods};

PyMODINIT_FUNC PyInit__copyloop(void)
{
    return PyModuleDef_Init(&definition);
}
