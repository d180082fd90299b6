// Outbox, Outboxes and Relay of plain.py, which says what each does: what one does, the other has to do.
//
// Errors: a function that returns -1 or NULL has set an exception, unless it says otherwise.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

enum {
  MOST_SOCKETS = 32,
  FEW_SOCKETS = 4,
  MOST_HELD = 64 * 1024,
  MOST_TIMES = 32,
  LONGEST_READ = 1 << 20,
  HEX_DIGITS = 7
};

// Names that are looked up, made once.
static PyObject *write_, *is_closing, *get_write_buffer_size, *call_soon, *send, *call_exception_handler, *begin, *end,
    *at;

typedef struct {
  PyObject_HEAD PyObject *loop, *waiting;  // waiting: a list of outboxes
  Py_ssize_t before;                       // how many waited in the last turn with any
} Outboxes;

typedef struct {
  PyObject_HEAD PyObject *transport, *held;  // held: bytes, or NULL
  Outboxes* outboxes;
  Py_ssize_t written;
} Outbox;

typedef struct {
  PyObject_HEAD vectorcallfunc call;
  PyObject *begin, *end, *deadline, *note;  // begin, end: bytes
  PyObject *written_begin, *written_end;    // bytes around each text, or NULL
  PyObject* writer;                         // of texts, or NULL; with neither, reads are written as they came
  Outbox* outbox;
  double idle;
  Py_ssize_t texts, count;  // count: of the times
  double times[MOST_TIMES];
} Relay;

static PyTypeObject OutboxesType, OutboxType;

// --- Outbox ---------------------------------------------------------------------------------------------------------

static int flush(Outbox* self) {
  if (self->held == NULL) return 0;
  PyObject *data = self->held, *done = NULL;
  self->held = NULL;
  PyObject* found = PyObject_CallMethodNoArgs(self->transport, is_closing);
  int closing = found == NULL ? -1 : PyObject_IsTrue(found);
  Py_XDECREF(found);
  if (closing == 0 && (done = PyObject_CallMethodOneArg(self->transport, write_, data)) == NULL) closing = -1;
  Py_XDECREF(done);
  Py_DECREF(data);
  return closing < 0 ? -1 : 0;
}

// Tells the event loop of the present exception.
static int report(PyObject* loop) {
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  if (trace != NULL) PyException_SetTraceback(error, trace);
  PyObject* context = Py_BuildValue("{s:s, s:O}", "message", "a socket was not written to", "exception", error);
  PyObject* done = context == NULL ? NULL : PyObject_CallMethodOneArg(loop, call_exception_handler, context);
  Py_XDECREF(context);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(trace);
  if (done == NULL) return -1;
  Py_DECREF(done);
  return 0;
}

static int send_all(Outboxes* self) {
  PyObject* waiting = self->waiting;
  if ((self->waiting = PyList_New(0)) == NULL) {
    self->waiting = waiting;
    return -1;
  }
  int result = 0;
  if (PyList_GET_SIZE(waiting) > 0) self->before = PyList_GET_SIZE(waiting);
  for (Py_ssize_t at = 0; at < PyList_GET_SIZE(waiting) && result == 0; at++) {
    Outbox* each = (Outbox*)PyList_GET_ITEM(waiting, at);
    // Of one socket: what the others hold is to leave.
    if (flush(each) < 0) result = PyErr_ExceptionMatches(PyExc_Exception) ? report(self->loop) : -1;
  }
  Py_DECREF(waiting);
  return result;
}

static int send_soon(Outboxes* self) {
  PyObject* method = PyObject_GetAttr((PyObject*)self, send);
  PyObject* done = method == NULL ? NULL : PyObject_CallMethodOneArg(self->loop, call_soon, method);
  Py_XDECREF(method);
  if (done == NULL) return -1;
  Py_DECREF(done);
  return 0;
}

static int write_data(Outbox* self, PyObject* data) {
  Py_ssize_t size = PyBytes_GET_SIZE(data);
  self->written += size;
  if (self->held != NULL) {
    PyBytes_Concat(&self->held, data);
    if (self->held == NULL) return -1;
    return PyBytes_GET_SIZE(self->held) > MOST_HELD ? flush(self) : 0;
  }
  if (size == 0) return 0;
  Outboxes* all = self->outboxes;
  if (PyList_Append(all->waiting, (PyObject*)self) < 0) return -1;
  Py_INCREF(data);
  self->held = data;
  Py_ssize_t count = PyList_GET_SIZE(all->waiting);
  if (count == 1) return send_soon(all);
  return count >= MOST_SOCKETS ? send_all(all) : 0;
}

static int outbox_init(Outbox* self, PyObject* args, PyObject* names) {
  PyObject *transport, *outboxes;
  static char* known[] = {"transport", "outboxes", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, names, "OO!:Outbox", known, &transport, &OutboxesType, &outboxes)) return -1;
  Py_XSETREF(self->transport, Py_NewRef(transport));
  Py_XSETREF(self->outboxes, (Outboxes*)Py_NewRef(outboxes));
  return 0;
}

static PyObject* outbox_write(Outbox* self, PyObject* data) {
  if (!PyBytes_Check(data)) return PyErr_Format(PyExc_TypeError, "bytes are written, not %s", Py_TYPE(data)->tp_name);
  if (write_data(self, data) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject* outbox_flush(Outbox* self, PyObject* Py_UNUSED(none)) {
  if (flush(self) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject* outbox_flush_early(Outbox* self, PyObject* none) {
  if (PyList_GET_SIZE(self->outboxes->waiting) <= FEW_SOCKETS && self->outboxes->before <= FEW_SOCKETS)
    return outbox_flush(self, none);
  Py_RETURN_NONE;
}

static PyObject* outbox_unsent(Outbox* self, void* Py_UNUSED(none)) {
  PyObject* found = PyObject_CallMethodNoArgs(self->transport, get_write_buffer_size);
  if (found == NULL) return NULL;
  Py_ssize_t size = PyLong_AsSsize_t(found);
  Py_DECREF(found);
  if (size == -1 && PyErr_Occurred()) return NULL;
  return PyLong_FromSsize_t(size + (self->held == NULL ? 0 : PyBytes_GET_SIZE(self->held)));
}

static int outbox_traverse(Outbox* self, visitproc visit, void* arg) {
  Py_VISIT(self->transport);
  Py_VISIT(self->outboxes);
  return 0;
}

static int outbox_clear(Outbox* self) {
  Py_CLEAR(self->transport);
  Py_CLEAR(self->outboxes);
  Py_CLEAR(self->held);
  return 0;
}

static void outbox_dealloc(Outbox* self) {
  PyObject_GC_UnTrack(self);
  outbox_clear(self);
  Py_TYPE(self)->tp_free(self);
}

static PyMethodDef outbox_methods[] = {
    {"write", (PyCFunction)outbox_write, METH_O, "Write bytes behind those before."},
    {"flush_early", (PyCFunction)outbox_flush_early, METH_NOARGS, "Send what is held, if few sockets are written to."},
    {"flush", (PyCFunction)outbox_flush, METH_NOARGS, "Send what is held."},
    {NULL}};
static PyMemberDef outbox_members[] = {{"transport", T_OBJECT, offsetof(Outbox, transport), READONLY, NULL},
                                       {"written", T_PYSSIZET, offsetof(Outbox, written), READONLY, NULL},
                                       {NULL}};
static PyGetSetDef outbox_properties[] = {{"unsent", (getter)outbox_unsent, NULL, NULL, NULL}, {NULL}};

static PyTypeObject OutboxType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "backends.transport.outbox.compiled.Outbox",
    .tp_basicsize = sizeof(Outbox),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)outbox_init,
    .tp_traverse = (traverseproc)outbox_traverse,
    .tp_clear = (inquiry)outbox_clear,
    .tp_dealloc = (destructor)outbox_dealloc,
    .tp_methods = outbox_methods,
    .tp_members = outbox_members,
    .tp_getset = outbox_properties,
};

// --- Outboxes -------------------------------------------------------------------------------------------------------

static int outboxes_init(Outboxes* self, PyObject* args, PyObject* names) {
  PyObject* loop;
  static char* known[] = {"loop", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, names, "O:Outboxes", known, &loop)) return -1;
  PyObject* waiting = PyList_New(0);
  if (waiting == NULL) return -1;
  Py_XSETREF(self->loop, Py_NewRef(loop));
  Py_XSETREF(self->waiting, waiting);
  return 0;
}

static PyObject* outboxes_send(Outboxes* self, PyObject* Py_UNUSED(none)) {
  if (send_all(self) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject* outboxes_send_soon(Outboxes* self, PyObject* Py_UNUSED(none)) {
  if (send_soon(self) < 0) return NULL;
  Py_RETURN_NONE;
}

static int outboxes_traverse(Outboxes* self, visitproc visit, void* arg) {
  Py_VISIT(self->loop);
  Py_VISIT(self->waiting);
  return 0;
}

static int outboxes_clear(Outboxes* self) {
  Py_CLEAR(self->loop);
  Py_CLEAR(self->waiting);
  return 0;
}

static void outboxes_dealloc(Outboxes* self) {
  PyObject_GC_UnTrack(self);
  outboxes_clear(self);
  Py_TYPE(self)->tp_free(self);
}

static PyMethodDef outboxes_methods[] = {
    {"send", (PyCFunction)outboxes_send, METH_NOARGS, "Have all send what they hold."},
    {"send_soon", (PyCFunction)outboxes_send_soon, METH_NOARGS, "Have all send what they hold at the turn's end."},
    {NULL}};
static PyMemberDef outboxes_members[] = {{"waiting", T_OBJECT, offsetof(Outboxes, waiting), READONLY, NULL},
                                         {"before", T_PYSSIZET, offsetof(Outboxes, before), READONLY, NULL},
                                         {NULL}};

static PyTypeObject OutboxesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "backends.transport.outbox.compiled.Outboxes",
    .tp_basicsize = sizeof(Outboxes),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)outboxes_init,
    .tp_traverse = (traverseproc)outboxes_traverse,
    .tp_clear = (inquiry)outboxes_clear,
    .tp_dealloc = (destructor)outboxes_dealloc,
    .tp_methods = outboxes_methods,
    .tp_members = outboxes_members,
};

// --- Relay ----------------------------------------------------------------------------------------------------------

enum { UNPLAIN = 1, HIGH = 2 };
static unsigned char kinds[256];  // of bytes: what a JSON string does not hold as it is, and bytes of other characters

// Whether a text is UTF-8 without the line separators that some clients know (`adapters.formats.sse.guard`).
static bool is_one_line(const unsigned char* text, Py_ssize_t size) {
  PyObject* decoded = PyUnicode_DecodeUTF8((const char*)text, size, NULL);
  if (decoded == NULL) {
    PyErr_Clear();
    return false;
  }
  Py_DECREF(decoded);
  for (Py_ssize_t at = 0; at < size; at++) {
    // It is UTF-8, so that the bytes behind a first one are there.
    if (text[at] == 0xc2 && text[at + 1] == 0x85) return false;
    if (text[at] == 0xe2 && text[at + 1] == 0x80 && (text[at + 2] | 1) == 0xa9) return false;
  }
  return true;
}

typedef struct {
  const unsigned char* data;
  Py_ssize_t size;
} Text;

// Moves to the next chunk of a read, and finds its text; false: it is something else.
static bool next_text(const Relay* self, const unsigned char** at, const unsigned char* stop, Text* text) {
  const unsigned char* data = *at;
  Py_ssize_t before = PyBytes_GET_SIZE(self->begin), after = PyBytes_GET_SIZE(self->end), length = 0;
  // RFC 9112, section 7.1: the length in hexadecimal digits, here without zeros before it or extensions.
  int digits = 0;
  if (*data == '0') return false;
  for (; data < stop && digits < HEX_DIGITS; data++, digits++) {
    if (*data >= '0' && *data <= '9')
      length = length << 4 | (*data - '0');
    else if (*data >= 'a' && *data <= 'f')
      length = length << 4 | (*data - 'a' + 10);
    else
      break;
  }
  if (digits == 0 || length < before + after || stop - data < length + 4) return false;
  if (data[0] != '\r' || data[1] != '\n' || data[length + 2] != '\r' || data[length + 3] != '\n') return false;
  data += 2;
  text->data = data + before;
  text->size = length - before - after;
  *at = data + length + 2;
  return memcmp(data, PyBytes_AS_STRING(self->begin), before) == 0 &&
         memcmp(text->data + text->size, PyBytes_AS_STRING(self->end), after) == 0;
}

// How many texts there are in a read, but for empty ones, and how long they are together; -1, without an exception: it
// is something else, too.
static Py_ssize_t count_texts(const Relay* self, PyObject* read, Py_ssize_t* size) {
  const unsigned char *data = (unsigned char*)PyBytes_AS_STRING(read), *stop = data + PyBytes_GET_SIZE(read);
  Py_ssize_t texts = 0;
  Text text;
  if (data == stop || stop - data > LONGEST_READ) return -1;
  for (*size = 0; data < stop; *size += text.size) {
    if (!next_text(self, &data, stop, &text)) return -1;
    int found = 0;
    for (Py_ssize_t at = 0; at < text.size; at++) found |= kinds[text.data[at]];
    if (found & UNPLAIN || (found & HIGH && !is_one_line(text.data, text.size))) return -1;
    texts += text.size > 0;
  }
  return texts;
}

// A chunk of the transfer coding for so many bytes, which the caller writes at `body`.
static PyObject* make_chunk(Py_ssize_t size, char** body) {
  char length[2 * sizeof size + 3];
  int digits = PyOS_snprintf(length, sizeof length, "%zx\r\n", (size_t)size);
  PyObject* chunk = PyBytes_FromStringAndSize(NULL, digits + size + 2);
  if (chunk == NULL) return NULL;
  *body = (char*)memcpy(PyBytes_AS_STRING(chunk), length, digits) + digits;
  memcpy(*body + size, "\r\n", 2);
  return chunk;
}

static char* append(char* to, const void* data, Py_ssize_t size) { return (char*)memcpy(to, data, size) + size; }

// A chunk with each text of a read between the bytes that are written around it.
static PyObject* write_between(const Relay* self, PyObject* read, Py_ssize_t texts, Py_ssize_t size) {
  const unsigned char *data = (unsigned char*)PyBytes_AS_STRING(read), *stop = data + PyBytes_GET_SIZE(read);
  Py_ssize_t before = PyBytes_GET_SIZE(self->written_begin), after = PyBytes_GET_SIZE(self->written_end);
  char* to;
  PyObject* chunk = make_chunk(texts * (before + after) + size, &to);
  Text text;
  while (chunk != NULL && data < stop && next_text(self, &data, stop, &text)) {
    if (text.size == 0) continue;
    to = append(to, PyBytes_AS_STRING(self->written_begin), before);
    to = append(to, text.data, text.size);
    to = append(to, PyBytes_AS_STRING(self->written_end), after);
  }
  return chunk;
}

// A chunk with what the writer makes of the texts of a read.
static PyObject* write_anew(const Relay* self, PyObject* read) {
  const unsigned char *data = (unsigned char*)PyBytes_AS_STRING(read), *stop = data + PyBytes_GET_SIZE(read);
  PyObject* texts = PyList_New(0);
  Text text;
  while (texts != NULL && data < stop && next_text(self, &data, stop, &text)) {
    if (text.size == 0) continue;
    PyObject* each = PyBytes_FromStringAndSize((const char*)text.data, text.size);
    if (each == NULL || PyList_Append(texts, each) < 0) Py_CLEAR(texts);
    Py_XDECREF(each);
  }
  PyObject* written = texts == NULL ? NULL : PyObject_CallOneArg(self->writer, texts);
  Py_XDECREF(texts);
  if (written == NULL) return NULL;
  PyObject* chunk = NULL;
  char* to;
  if (!PyBytes_Check(written))
    PyErr_SetString(PyExc_TypeError, "a writer returns bytes");
  else if ((chunk = make_chunk(PyBytes_GET_SIZE(written), &to)) != NULL)
    append(to, PyBytes_AS_STRING(written), PyBytes_GET_SIZE(written));
  Py_DECREF(written);
  return chunk;
}

static int note_times(Relay* self) {
  if (self->count == 0) return 0;
  PyObject* times = PyList_New(self->count);
  if (times == NULL) return -1;
  for (Py_ssize_t at = 0; at < self->count; at++) {
    PyObject* time = PyFloat_FromDouble(self->times[at]);
    if (time == NULL) {
      Py_DECREF(times);
      return -1;
    }
    PyList_SET_ITEM(times, at, time);
  }
  self->count = 0;
  PyObject* done = PyObject_CallOneArg(self->note, times);
  Py_DECREF(times);
  if (done == NULL) return -1;
  Py_DECREF(done);
  return 0;
}

// Moves the deadline, and notes the time of a read with texts.
static int note_read(Relay* self, Py_ssize_t texts) {
  struct timespec clock;
  clock_gettime(CLOCK_MONOTONIC, &clock);
  double now = (double)clock.tv_sec + (double)clock.tv_nsec * 1e-9;
  PyObject* next = PyFloat_FromDouble(now + self->idle);
  int result = next == NULL ? -1 : PyObject_SetAttr(self->deadline, at, next);
  Py_XDECREF(next);
  if (result < 0 || texts == 0) return result;
  self->times[self->count++] = now;
  return self->count == MOST_TIMES ? note_times(self) : 0;
}

static PyObject* relay_call(PyObject* callable, PyObject* const* args, size_t flags, PyObject* names) {
  Relay* self = (Relay*)callable;
  if (PyVectorcall_NARGS(flags) != 1 || names != NULL || !PyBytes_Check(args[0]))
    return PyErr_Format(PyExc_TypeError, "a relay gets bytes");
  PyObject *read = args[0], *data = NULL;  // data: what is written, or NULL
  Py_ssize_t size, texts = count_texts(self, read, &size);
  if (texts < 0) Py_RETURN_FALSE;
  if (self->written_begin == NULL && self->writer == NULL)
    data = Py_NewRef(read);
  else if (texts > 0 &&
           (data = self->writer == NULL ? write_between(self, read, texts, size) : write_anew(self, read)) == NULL)
    return NULL;
  self->texts += texts;
  // Before the write, after which the client may be known to be slow: then nothing is late.
  int result = note_read(self, texts);
  if (result == 0 && data != NULL) result = write_data(self->outbox, data);
  Py_XDECREF(data);
  if (result < 0) return NULL;
  Py_RETURN_TRUE;
}

static PyObject* relay_new(PyTypeObject* type, PyObject* Py_UNUSED(args), PyObject* Py_UNUSED(names)) {
  Relay* self = (Relay*)type->tp_alloc(type, 0);
  if (self != NULL) self->call = relay_call;
  return (PyObject*)self;
}

static int relay_init(Relay* self, PyObject* args, PyObject* names) {
  PyObject *runs, *outbox, *deadline, *note, *writer, *before = NULL, *after = NULL;
  double idle;
  static char* known[] = {"runs", "outbox", "deadline", "idle", "note", "writer", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, names, "OO!OdOO:Relay", known, &runs, &OutboxType, &outbox, &deadline, &idle,
                                   &note, &writer))
    return -1;
  if (PyTuple_Check(writer) && !PyArg_ParseTuple(writer, "SS:writer", &before, &after)) return -1;
  PyObject *first = PyObject_GetAttr(runs, begin), *last = first == NULL ? NULL : PyObject_GetAttr(runs, end);
  if (last == NULL || !PyBytes_Check(first) || !PyBytes_Check(last)) {
    if (last != NULL) PyErr_SetString(PyExc_TypeError, "runs begin and end with bytes");
    Py_XDECREF(first);
    Py_XDECREF(last);
    return -1;
  }
  Py_XSETREF(self->begin, first);
  Py_XSETREF(self->end, last);
  Py_XSETREF(self->outbox, (Outbox*)Py_NewRef(outbox));
  Py_XSETREF(self->deadline, Py_NewRef(deadline));
  Py_XSETREF(self->note, Py_NewRef(note));
  Py_XSETREF(self->written_begin, Py_XNewRef(before));
  Py_XSETREF(self->written_end, Py_XNewRef(after));
  Py_XSETREF(self->writer, writer == Py_None || before != NULL ? NULL : Py_NewRef(writer));
  self->idle = idle;
  return 0;
}

static PyObject* relay_end(Relay* self, PyObject* Py_UNUSED(none)) {
  if (note_times(self) < 0) return NULL;
  PyObject* texts = PyLong_FromSsize_t(self->texts);
  self->texts = 0;
  return texts;
}

static int relay_traverse(Relay* self, visitproc visit, void* arg) {
  Py_VISIT(self->outbox);
  Py_VISIT(self->deadline);
  Py_VISIT(self->note);
  Py_VISIT(self->writer);
  return 0;
}

static int relay_clear(Relay* self) {
  Py_CLEAR(self->begin);
  Py_CLEAR(self->end);
  Py_CLEAR(self->outbox);
  Py_CLEAR(self->deadline);
  Py_CLEAR(self->note);
  Py_CLEAR(self->written_begin);
  Py_CLEAR(self->written_end);
  Py_CLEAR(self->writer);
  return 0;
}

static void relay_dealloc(Relay* self) {
  PyObject_GC_UnTrack(self);
  relay_clear(self);
  Py_TYPE(self)->tp_free(self);
}

static PyMethodDef relay_methods[] = {{"end", (PyCFunction)relay_end, METH_NOARGS, "Note the rest; return the texts."},
                                      {NULL}};

static PyTypeObject RelayType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "backends.transport.outbox.compiled.Relay",
    .tp_basicsize = sizeof(Relay),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = relay_new,
    .tp_init = (initproc)relay_init,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Relay, call),
    .tp_traverse = (traverseproc)relay_traverse,
    .tp_clear = (inquiry)relay_clear,
    .tp_dealloc = (destructor)relay_dealloc,
    .tp_methods = relay_methods,
};

// --- the module -----------------------------------------------------------------------------------------------------

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "compiled", .m_size = -1};

PyMODINIT_FUNC PyInit_compiled(void) {
  for (int byte = 0; byte < 256; byte++)
    kinds[byte] = byte < ' ' || byte == '"' || byte == '\\' ? UNPLAIN : byte >= 0x80 ? HIGH : 0;
  struct {
    PyObject** name;
    const char* text;
  } names[] = {{&write_, "write"},
               {&is_closing, "is_closing"},
               {&get_write_buffer_size, "get_write_buffer_size"},
               {&call_soon, "call_soon"},
               {&send, "send"},
               {&call_exception_handler, "call_exception_handler"},
               {&begin, "begin"},
               {&end, "end"},
               {&at, "at"}};
  for (size_t each = 0; each < sizeof names / sizeof *names; each++)
    if ((*names[each].name = PyUnicode_InternFromString(names[each].text)) == NULL) return NULL;
  PyObject* module = PyModule_Create(&definition);
  if (module != NULL && (PyModule_AddType(module, &OutboxesType) < 0 || PyModule_AddType(module, &OutboxType) < 0 ||
                         PyModule_AddType(module, &RelayType) < 0))
    Py_CLEAR(module);
  return module;
}
