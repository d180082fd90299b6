// The functions that __init__.py describes, which has others for installations without a C compiler.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

enum { REQUESTS, TOKENS, COST, KINDS };

// As `packed` writes it.
typedef struct {
  int64_t row, low, high, count, kind;
  double until, most;
} Row;

// Where a row begins in memory.
typedef struct {
  int64_t low, high;
  double until, total;
} Head;

typedef struct {
  Py_buffer memory, rows;
  Py_ssize_t count;  // of the rows
} Rows;

static void release(Rows* self) {
  PyBuffer_Release(&self->memory);
  PyBuffer_Release(&self->rows);
}

// Gets the memory and the rows that a function was called with; false: it has set an exception.
static bool get_rows(Rows* self, PyObject* const* args) {
  if (PyObject_GetBuffer(args[0], &self->memory, PyBUF_WRITABLE) < 0) return false;
  if (PyObject_GetBuffer(args[1], &self->rows, PyBUF_SIMPLE) < 0) {
    PyBuffer_Release(&self->memory);
    return false;
  }
  self->count = self->rows.len / (Py_ssize_t)sizeof(Row);
  const Row* rows = self->rows.buf;
  for (Py_ssize_t each = 0; each < self->count; each++) {
    bool row_fits = rows[each].row >= 0 && rows[each].row <= self->memory.len - (Py_ssize_t)sizeof(Head);
    bool count_fits = rows[each].count >= 0 && rows[each].count <= self->memory.len - (Py_ssize_t)sizeof(double);
    if (!row_fits || !count_fits || rows[each].kind < 0 || rows[each].kind >= KINDS) {
      PyErr_SetString(PyExc_ValueError, "a row is not in the memory");
      release(self);
      return false;
    }
  }
  return true;
}

static Head* head_of(const Rows* self, const Row* row) { return (Head*)((char*)self->memory.buf + row->row); }

static bool is_usual(const Head* head, const Row* row) {
  return head->low == row->low && head->high == row->high && head->until == row->until;
}

static void add(const Rows* self, const Row* row, double amount) {
  head_of(self, row)->total += amount;
  *(double*)((char*)self->memory.buf + row->count) += amount;
}

static PyObject* take(PyObject* Py_UNUSED(module), PyObject* const* args, Py_ssize_t given) {
  if (given != 3) return PyErr_Format(PyExc_TypeError, "take gets memory, rows and tokens");
  double amounts[KINDS] = {1.0, PyFloat_AsDouble(args[2]), 0.0};
  if (amounts[TOKENS] == -1.0 && PyErr_Occurred()) return NULL;
  Rows rows;
  if (!get_rows(&rows, args)) return NULL;
  const Row* first = rows.rows.buf;
  PyObject* found = PyTuple_New(rows.count);
  for (Py_ssize_t each = 0; found != NULL && found != Py_None && each < rows.count; each++) {
    const Head* head = head_of(&rows, &first[each]);
    double left = first[each].most - head->total - amounts[first[each].kind];
    if (!is_usual(head, &first[each]) || left < 0 || head->total >= first[each].most) {
      Py_SETREF(found, Py_NewRef(Py_None));
    } else {
      PyObject* number = PyFloat_FromDouble(left);
      if (number == NULL)
        Py_CLEAR(found);
      else
        PyTuple_SET_ITEM(found, each, number);
    }
  }
  for (Py_ssize_t each = 0; found != NULL && found != Py_None && each < rows.count; each++)
    add(&rows, &first[each], amounts[first[each].kind]);
  release(&rows);
  return found;
}

static PyObject* correct(PyObject* Py_UNUSED(module), PyObject* const* args, Py_ssize_t given) {
  if (given != 4) return PyErr_Format(PyExc_TypeError, "correct gets memory, rows, tokens and cost");
  double amounts[KINDS] = {0.0, PyFloat_AsDouble(args[2]), PyFloat_AsDouble(args[3])};
  if (PyErr_Occurred()) return NULL;
  Rows rows;
  if (!get_rows(&rows, args)) return NULL;
  const Row* first = rows.rows.buf;
  bool are_usual = true;
  for (Py_ssize_t each = 0; each < rows.count; each++)
    if (amounts[first[each].kind] != 0.0 && !is_usual(head_of(&rows, &first[each]), &first[each])) are_usual = false;
  for (Py_ssize_t each = 0; are_usual && each < rows.count; each++)
    if (amounts[first[each].kind] != 0.0) add(&rows, &first[each], amounts[first[each].kind]);
  release(&rows);
  return PyBool_FromLong(are_usual);
}

static PyMethodDef functions[] = {
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL, "Count a request and its tokens."},
    {"correct", (PyCFunction)(void (*)(void))correct, METH_FASTCALL, "Add to what was counted, or take from it."},
    {NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_size = -1,
                                        .m_methods = functions};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModule_Create(&definition); }
