/* What is done to every message, and what goes back from it. First the inner loop of a gate network, all of it while an
 * edge's rows are in registers:
 *
 *   h        = sum over parts of weight[e] * table[index[e] * stride + offset]  (+ dense[e])
 *   location = clamp(sum_k relu(h[k] / sqrt(mean(h^2) + eps) * gamma[k] + beta[k]) * out[k] + bias, -limit, limit)
 *
 * and its gradient; then z m + (1 - z) b and its gradient; then hard gates, which overwrite what is shut and do not
 * touch what is open. Of some edges alone, first, first + step, ..., a gradient is taken.
 *
 * fused.py calls these functions with arrays (the buffer protocol). `take` checks the type, shape, alignment and
 * contiguity of each before anything is computed, and every index is compared with the number of rows there are
 * right before a row is read or added to. kernels.py and messages.py define the same in plain PyTorch.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define MOST_PARTS 16
#define MOST_WIDTH 1024
#define AHEAD 16 /* rows of tables are asked for so many edges before they are needed */
#define LANES 8  /* numbers that are worked on at once; a width is a multiple of it */

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Bits __attribute__((vector_size(4 * LANES)));

#ifdef __x86_64__
#define WIDE __attribute__((target("avx2,fma")))
#define CAN_RUN (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define WIDE
#define CAN_RUN 1
#endif

/* Arrays that a call holds until it returns. */
#define MOST_VIEWS (3 * MOST_PARTS + 9)
typedef struct {
    Py_buffer view[MOST_VIEWS];
    int count, failed; /* failed: an exception is set */
} Held;

enum { FLOATS = 1, INDICES = 2, FLAGS = 3, ANYTHING = 4, TYPE = 7, WRITE = 8, OPTIONAL = 16 };
#define ANY (-1) /* a number of rows or columns that may be any */
#define FLAT (-2) /* columns of an array of one dimension */

static const char *const type_names[] = {"", "float32", "int64", "bool", "numbers"};

static int has_type(const Py_buffer *view, int type) {
    const char *format = view->format ? view->format : "B";
    if (type == ANYTHING) return !strchr(format, 'O'); /* objects are counted, their bytes must not be copied */
    if (!*format || format[1]) return 0;
    if (type == FLOATS) return *format == 'f' && view->itemsize == 4;
    if (type == INDICES) return (*format == 'l' || *format == 'q') && view->itemsize == 8;
    return *format == '?' && view->itemsize == 1;
}

/* The memory of an array that is as it should be; NULL for None where that is allowed. Otherwise held->failed is set,
 * and later calls do nothing: one look at it after several calls is enough. */
static void *take(Held *held, PyObject *array, const char *name, int kind, Py_ssize_t rows, Py_ssize_t columns) {
    static char nothing[8];
    const int type = kind & TYPE;
    if (held->failed || (array == Py_None && kind & OPTIONAL)) return NULL;
    held->failed = 1;
    if (held->count == MOST_VIEWS) return PyErr_SetString(PyExc_ValueError, "too many arrays"), NULL;
    Py_buffer *view = &held->view[held->count];
    if (PyObject_GetBuffer(array, view, PyBUF_ND | PyBUF_FORMAT | (kind & WRITE ? PyBUF_WRITABLE : 0))) {
        if (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_ValueError))
            PyErr_Format(PyExc_ValueError, "%s: expected a contiguous%s array", name, kind & WRITE ? ", writable" : "");
        return NULL;
    }
    held->count++;
    if (!has_type(view, type))
        return PyErr_Format(PyExc_TypeError, "%s: expected %s, got format %s of %zd byte(s)", name, type_names[type],
                            view->format ? view->format : "B", view->itemsize);
    const int dims = columns == FLAT ? 1 : 2;
    if (type != ANYTHING && view->ndim != dims)
        return PyErr_Format(PyExc_ValueError, "%s: expected %d dimension(s), got %d", name, dims, view->ndim);
    if (view->ndim < 1) return PyErr_Format(PyExc_ValueError, "%s: expected at least one dimension, got none", name);
    if (rows != ANY && view->shape[0] != rows)
        return PyErr_Format(PyExc_ValueError, "%s: expected %zd row(s), got %zd", name, rows, view->shape[0]);
    if (columns >= 0 && view->shape[1] != columns)
        return PyErr_Format(PyExc_ValueError, "%s: expected %zd column(s), got %zd", name, columns, view->shape[1]);
    if (type != ANYTHING && (uintptr_t)view->buf % (uintptr_t)view->itemsize)
        return PyErr_Format(PyExc_ValueError, "%s: expected aligned memory", name);
    held->failed = 0;
    return view->buf ? view->buf : nothing;
}

/* Shape of what was taken last; 0 where nothing was. */
static Py_ssize_t shape(const Held *held, int dimension) {
    return held->failed || !held->count ? 0 : held->view[held->count - 1].shape[dimension];
}

/* NULL where an exception is set, else None. */
static PyObject *done(Held *held) {
    while (held->count) PyBuffer_Release(&held->view[--held->count]);
    if (held->failed) return NULL;
    Py_RETURN_NONE;
}

static void refuse(Held *held, const char *why) {
    if (!held->failed) PyErr_SetString(PyExc_ValueError, why);
    held->failed = 1;
}

/* How many of the edges first, first + step, ... there are. */
static Py_ssize_t chosen(Held *held, Py_ssize_t edges, Py_ssize_t first, Py_ssize_t step) {
    if (first < 0 || step < 1 || first > INT32_MAX || step > INT32_MAX) {
        refuse(held, "expected edges to begin at 0 or later and to be at least 1 apart");
        return 0;
    }
    return first < edges ? (edges - 1 - first) / step + 1 : 0;
}

typedef struct {
    float *table;
    const int64_t *index;
    const float *weight; /* NULL: 1 */
    int64_t stride, offset;
    uint64_t rows; /* an index is below it */
} Part;

/* Which index of which edge is out of range; edge -1: none. */
typedef struct {
    int64_t edge, index;
    uint64_t rows;
} Wrong;
static const Wrong none = {-1, 0, 0};

static void report(Held *held, Wrong wrong) {
    if (wrong.edge < 0) return;
    PyErr_Format(PyExc_IndexError, "index %lld at edge %lld, where there are %llu rows", (long long)wrong.index,
                 (long long)wrong.edge, (unsigned long long)wrong.rows);
    held->failed = 1;
}

/* Reads (table, index, weight or None, stride, offset) of each part. */
static void take_parts(Held *held, PyObject *parts, Py_ssize_t edges, Py_ssize_t width, int writes, Part *found,
                       int64_t *count) {
    *count = 0;
    if (held->failed) return;
    const Py_ssize_t given = PyTuple_Size(parts);
    if (given > MOST_PARTS) return refuse(held, "expected at most 16 parts");
    for (Py_ssize_t p = 0; p < given; p++) {
        PyObject *part = PyTuple_GetItem(parts, p), *table, *index, *weight;
        Py_ssize_t stride, offset;
        if (!PyTuple_Check(part)) return refuse(held, "expected every part as a tuple");
        if (!PyArg_ParseTuple(part, "OOOnn", &table, &index, &weight, &stride, &offset)) {
            held->failed = 1;
            return;
        }
        if (stride < 1 || offset < 0) return refuse(held, "expected a stride of at least 1 and an offset of at least 0");
        float *memory = take(held, table, "table", FLOATS | writes, ANY, width);
        const Py_ssize_t rows = shape(held, 0);
        found[p] = (Part){memory, take(held, index, "index", INDICES, edges, FLAT),
                          take(held, weight, "weight", FLOATS | OPTIONAL, edges, FLAT), stride, offset,
                          offset < rows ? (uint64_t)((rows - 1 - offset) / stride + 1) : 0};
    }
    *count = held->failed ? 0 : given;
}

/* What follows the sum of the parts: an array of 3 width + 1 numbers, or 2 width + 1 without gamma. */
typedef struct {
    const float *gamma; /* [width]; NULL: 1 */
    const float *beta, *out;
    const float *bias; /* one number */
} Top;

static Top take_top(Held *held, PyObject *array, Py_ssize_t width) {
    const float *memory = take(held, array, "top", FLOATS, ANY, FLAT);
    const Py_ssize_t size = shape(held, 0);
    if (size != 2 * width + 1 && size != 3 * width + 1) refuse(held, "top: expected 2 or 3 times the width, plus 1");
    if (held->failed) return (Top){NULL, NULL, NULL, NULL};
    const float *beta = size == 3 * width + 1 ? memory + width : memory;
    return (Top){beta == memory ? NULL : memory, beta, beta + width, beta + 2 * width};
}

/* What the backward pass needs of the edges that it is taken from: an array of kept * (width + 2) numbers. */
typedef struct {
    float *normal;  /* [kept, width] LayerNorm's result; NULL: nothing is kept */
    float *inverse; /* [kept] what it was multiplied by */
    float *raw;     /* [kept] the location before it was clamped */
} Kept;

static Kept take_kept(Held *held, PyObject *array, int kind, Py_ssize_t kept, Py_ssize_t width) {
    float *memory = take(held, array, "kept", FLOATS | kind, kept * (width + 2), FLAT);
    return memory ? (Kept){memory, memory + kept * width, memory + kept * (width + 1)} : (Kept){NULL, NULL, NULL};
}

/* 0, with an exception set, unless it is a multiple of LANES that is not too large. */
static Py_ssize_t fitting(Held *held, Py_ssize_t width) {
    if (width >= LANES && width <= MOST_WIDTH && width % LANES == 0) return width;
    refuse(held, "expected a width that is a multiple of 8 and at most 1024");
    return 0;
}

typedef struct {
    int64_t start, stop, width, parts; /* of the edges from start on, before stop */
    Part part[MOST_PARTS];
    const float *dense; /* NULL, or [stop - start, width] */
    Top top;
    float limit;
    float *location;     /* [edges] */
    int64_t first, step; /* which edges are kept for the backward pass */
    Kept kept;
} Gates;

static inline float *row(const Part *part, int64_t index, int64_t width) {
    return part->table + (index * part->stride + part->offset) * width;
}

/* Asks for a row early. Its index has not been checked yet, so the address is computed as a number and never read. */
static inline void ask_for(const Part *part, int64_t edge, int64_t width) {
    const uintptr_t number = (uintptr_t)part->index[edge] * (uintptr_t)part->stride + (uintptr_t)part->offset;
    const uintptr_t soon = (uintptr_t)part->table + number * (uintptr_t)width * 4;
    for (uintptr_t byte = 0; byte < (uintptr_t)width * 4; byte += 64) __builtin_prefetch((const void *)(soon + byte));
}

#define SUM(v) (((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])))

WIDE static inline __attribute__((always_inline)) Wrong run(const Gates *g, const int64_t vectors) {
    const int64_t width = vectors * LANES;
    const Lanes *gamma = (const Lanes *)g->top.gamma, *beta = (const Lanes *)g->top.beta;
    const Lanes *out = (const Lanes *)g->top.out;
    const Lanes zero = {0};
    Lanes h[MOST_WIDTH / LANES];
    const int64_t before = g->start > g->first ? (g->start - g->first + g->step - 1) / g->step : 0;
    int64_t next = g->kept.normal ? g->first + before * g->step : -1, kept = before;
    for (int64_t e = g->start; e < g->stop; e++) {
        if (e + AHEAD < g->stop)
            for (int64_t p = 0; p < g->parts; p++) ask_for(&g->part[p], e + AHEAD, width);
        const Lanes *dense = g->dense ? (const Lanes *)(g->dense + (e - g->start) * width) : NULL;
        for (int64_t k = 0; k < vectors; k++) h[k] = dense ? dense[k] : zero;
        for (int64_t p = 0; p < g->parts; p++) {
            const int64_t index = g->part[p].index[e];
            if ((uint64_t)index >= g->part[p].rows) return (Wrong){e, index, g->part[p].rows};
            const Lanes *t = (const Lanes *)row(&g->part[p], index, width);
            const float w = g->part[p].weight ? g->part[p].weight[e] : 1.0f;
            for (int64_t k = 0; k < vectors; k++) h[k] += w * t[k];
        }
        Lanes squares = zero, sums = zero;
        for (int64_t k = 0; k < vectors; k++) squares += h[k] * h[k];
        const float scale = 1.0f / sqrtf(SUM(squares) / (float)width + 1e-5f);
        for (int64_t k = 0; k < vectors; k++) {
            const Lanes y = (gamma ? h[k] * scale * gamma[k] : h[k] * scale) + beta[k];
            sums += (Lanes)((Bits)y & ~(Bits)(y <= zero)) * out[k]; /* what is not a number stays so */
        }
        const float location = SUM(sums) + *g->top.bias;
        g->location[e] = location > g->limit ? g->limit : location < -g->limit ? -g->limit : location;
        if (e == next) {
            Lanes *normal = (Lanes *)(g->kept.normal + kept * width);
            for (int64_t k = 0; k < vectors; k++) normal[k] = h[k] * scale;
            g->kept.inverse[kept] = scale;
            g->kept.raw[kept++] = location;
            next += g->step;
        }
    }
    return none;
}

/* Of known widths all is kept in registers. */
WIDE static Wrong run_32(const Gates *g) { return run(g, 32 / LANES); }
WIDE static Wrong run_64(const Gates *g) { return run(g, 64 / LANES); }
WIDE static Wrong run_any(const Gates *g) { return run(g, g->width / LANES); }

static PyObject *gates(PyObject *self, PyObject *args) {
    Gates g;
    Held held;
    held.count = held.failed = 0;
    PyObject *parts, *dense, *top, *location, *kept;
    Py_ssize_t width, first, step, start, stop;
    if (!PyArg_ParseTuple(args, "nO!OOfOOnnnn", &width, &PyTuple_Type, &parts, &dense, &top, &g.limit, &location, &kept,
                          &first, &step, &start, &stop))
        return NULL;
    width = fitting(&held, width);
    g.location = take(&held, location, "location", FLOATS | WRITE, ANY, FLAT);
    const Py_ssize_t edges = shape(&held, 0), count = chosen(&held, edges, first, step);
    if (start < 0 || stop < start || stop > edges) {
        refuse(&held, "expected start and stop between 0 and the number of edges");
        start = stop = 0;
    }
    g.top = take_top(&held, top, width);
    take_parts(&held, parts, edges, width, 0, g.part, &g.parts);
    g.dense = take(&held, dense, "dense", FLOATS | OPTIONAL, stop - start, width);
    g.kept = take_kept(&held, kept, WRITE | OPTIONAL, count, width);
    if (!held.failed) {
        Wrong wrong;
        g.start = start, g.stop = stop, g.width = width, g.first = first, g.step = step;
        Py_BEGIN_ALLOW_THREADS;
        wrong = (width == 32 ? run_32 : width == 64 ? run_64 : run_any)(&g);
        Py_END_ALLOW_THREADS;
        report(&held, wrong);
    }
    return done(&held);
}

typedef struct {
    int64_t edges, width, parts; /* of the edges that a gradient is taken from */
    int64_t first, step;
    Part part[MOST_PARTS]; /* as in gates, but of tables that the gradient is added to */
    Kept kept;             /* as gates left it */
    const float *grad;     /* of all edges */
    Top top;
    float limit;
    float *d_top; /* laid out as the array that top is taken from, added to */
    float *dense; /* NULL, or [edges, width] */
} Backward;

WIDE static inline __attribute__((always_inline)) Wrong back(const Backward *b, const int64_t vectors) {
    const int64_t width = vectors * LANES;
    const Lanes *gamma = (const Lanes *)b->top.gamma, *beta = (const Lanes *)b->top.beta;
    const Lanes *out = (const Lanes *)b->top.out;
    const Lanes zero = {0};
    /* Of the gradients that reach each ReLU, and of those times what went into LayerNorm's weight: the rest follows. */
    Lanes reached[MOST_WIDTH / LANES], weighted[MOST_WIDTH / LANES], d[MOST_WIDTH / LANES], through[MOST_WIDTH / LANES];
    for (int64_t k = 0; k < vectors; k++) reached[k] = weighted[k] = zero, through[k] = out[k] * gamma[k];
    double d_bias = 0;
    for (int64_t r = 0; r < b->edges; r++) {
        const int64_t e = b->first + r * b->step;
        const Lanes *normal = (const Lanes *)(b->kept.normal + r * width);
        float g = b->grad[e];
        /* A location beyond its limit takes no gradient that points further outward. */
        if ((b->kept.raw[r] > b->limit && g < 0) || (b->kept.raw[r] < -b->limit && g > 0)) g = 0;
        d_bias += g;
        const Lanes whole = zero + g;
        Lanes dot = zero;
        for (int64_t k = 0; k < vectors; k++) {
            const Lanes here = (Lanes)((Bits)whole & ~(Bits)(normal[k] * gamma[k] + beta[k] <= zero));
            reached[k] += here;
            weighted[k] += here * normal[k];
            d[k] = here * through[k];
            dot += d[k] * normal[k];
        }
        /* LayerNorm backwards; its centring is in the parameters. */
        const float share = SUM(dot) / (float)width, inverse = b->kept.inverse[r];
        for (int64_t k = 0; k < vectors; k++) d[k] = (d[k] - normal[k] * share) * inverse;
        for (int64_t p = 0; p < b->parts; p++) {
            const int64_t index = b->part[p].index[e];
            if ((uint64_t)index >= b->part[p].rows) return (Wrong){e, index, b->part[p].rows};
            const float w = b->part[p].weight ? b->part[p].weight[e] : 1.0f;
            Lanes *to = (Lanes *)row(&b->part[p], index, width);
            for (int64_t k = 0; k < vectors; k++) to[k] += d[k] * w;
        }
        if (b->dense) {
            Lanes *to = (Lanes *)(b->dense + r * width);
            for (int64_t k = 0; k < vectors; k++) to[k] = d[k];
        }
    }
    Lanes *d_gamma = (Lanes *)b->d_top, *d_beta = d_gamma + vectors, *d_out = d_beta + vectors;
    for (int64_t k = 0; k < vectors; k++) {
        d_gamma[k] += out[k] * weighted[k];
        d_beta[k] += out[k] * reached[k];
        d_out[k] += gamma[k] * weighted[k] + beta[k] * reached[k];
    }
    b->d_top[3 * width] += (float)d_bias;
    return none;
}

WIDE static Wrong back_32(const Backward *b) { return back(b, 32 / LANES); }
WIDE static Wrong back_any(const Backward *b) { return back(b, b->width / LANES); }

static PyObject *gates_backward(PyObject *self, PyObject *args) {
    Backward b;
    Held held;
    held.count = held.failed = 0;
    PyObject *parts, *grad, *kept, *top, *d_top, *dense;
    Py_ssize_t width, first, step;
    if (!PyArg_ParseTuple(args, "nO!OOOfOOnn", &width, &PyTuple_Type, &parts, &grad, &kept, &top, &b.limit, &d_top,
                          &dense, &first, &step))
        return NULL;
    width = fitting(&held, width);
    b.grad = take(&held, grad, "grad", FLOATS, ANY, FLAT);
    const Py_ssize_t edges = shape(&held, 0), count = chosen(&held, edges, first, step);
    b.top = take_top(&held, top, width);
    if (!b.top.gamma) refuse(&held, "top: expected gamma, beta, out and bias");
    take_parts(&held, parts, edges, width, WRITE, b.part, &b.parts);
    b.kept = take_kept(&held, kept, 0, count, width);
    b.d_top = take(&held, d_top, "d_top", FLOATS | WRITE, 3 * width + 1, FLAT);
    b.dense = take(&held, dense, "dense", FLOATS | WRITE | OPTIONAL, count, width);
    if (!held.failed) {
        Wrong wrong;
        b.edges = count, b.width = width, b.first = first, b.step = step;
        Py_BEGIN_ALLOW_THREADS;
        wrong = (width == 32 ? back_32 : back_any)(&b);
        Py_END_ALLOW_THREADS;
        report(&held, wrong);
    }
    return done(&held);
}

/* Messages [edges, width] to z m + (1 - z) b, perhaps in offset; those that are kept as they were go to kept. */
WIDE static void blended(int64_t edges, int64_t width, const float *messages, const float *gate, const float *baseline,
                         float *to, float *kept, int64_t first, int64_t step) {
    int64_t next = kept ? first : -1;
    for (int64_t e = 0; e < edges; e++) {
        const float *m = messages + e * width;
        if (e == next) {
            memmove(kept, m, width * sizeof(float));
            kept += width;
            next += step;
        }
        const float z = gate[e], shut = 1 - z;
        float *result = to + e * width;
        int64_t k = 0;
        for (; k + LANES <= width; k += LANES)
            *(Lanes *)(result + k) = z * *(const Lanes *)(m + k) + shut * *(const Lanes *)(baseline + k);
        for (; k < width; k++) result[k] = z * m[k] + shut * baseline[k];
    }
}

static PyObject *blend(PyObject *self, PyObject *args) {
    Held held;
    held.count = held.failed = 0;
    PyObject *messages, *gate, *baseline, *to, *kept;
    Py_ssize_t first, step;
    if (!PyArg_ParseTuple(args, "OOOOOnn", &messages, &gate, &baseline, &to, &kept, &first, &step)) return NULL;
    const float *m = take(&held, messages, "messages", FLOATS, ANY, ANY);
    const Py_ssize_t edges = shape(&held, 0), width = shape(&held, 1), count = chosen(&held, edges, first, step);
    const float *z = take(&held, gate, "gate", FLOATS, edges, FLAT);
    const float *b = take(&held, baseline, "baseline", FLOATS, width, FLAT);
    float *result = take(&held, to, "to", FLOATS | WRITE, edges, width);
    float *copies = take(&held, kept, "kept", FLOATS | WRITE | OPTIONAL, count, width);
    if (!held.failed) {
        Py_BEGIN_ALLOW_THREADS;
        blended(edges, width, m, z, b, result, copies, first, step);
        Py_END_ALLOW_THREADS;
    }
    return done(&held);
}

#define AT_ONCE 256 /* sums of so many first: a long sum of small numbers loses the last of them */

typedef struct {
    int64_t edges, width, rows;
    Py_ssize_t first, step;
    const float *grad, *gate;
    const int64_t *source;        /* NULL, or the row of nodes that each message is */
    const float *kept, *from;     /* NULL, or the messages [kept, width] whose gates get a gradient, and the baseline */
    float *d_gate;                /* [edges]: of the kept, others are not touched */
    float *d_baseline;            /* NULL, or [width] */
    float *d_messages, *d_nodes;  /* NULL, or [edges, width] and [rows, width] */
} Blend;

WIDE static inline float inner(const float *grad, const float *message, const float *baseline, int64_t width) {
    Lanes sums = {0};
    int64_t k = 0;
    for (; k + LANES <= width; k += LANES)
        sums += *(const Lanes *)(grad + k) * (*(const Lanes *)(message + k) - *(const Lanes *)(baseline + k));
    float total = SUM(sums);
    for (; k < width; k++) total += grad[k] * (message[k] - baseline[k]);
    return total;
}

WIDE static Wrong blend_back(const Blend *b) {
    const int64_t width = b->width;
    const float *kept = b->kept;
    int64_t next = kept ? b->first : -1;
    float sums[MOST_WIDTH];
    for (int64_t start = 0; start < b->edges; start += AT_ONCE) {
        const int64_t stop = start + AT_ONCE < b->edges ? start + AT_ONCE : b->edges;
        if (b->d_baseline) memset(sums, 0, width * sizeof(float));
        for (int64_t e = start; e < stop; e++) {
            const float *restrict g = b->grad + e * width;
            const float z = b->gate[e];
            if (e == next) {
                b->d_gate[e] = inner(g, kept, b->from, width);
                kept += width;
                next += b->step;
            }
            if (b->d_baseline)
                for (int64_t k = 0; k < width; k++) sums[k] += (1 - z) * g[k];
            if (b->d_messages) {
                float *restrict m = b->d_messages + e * width;
                for (int64_t k = 0; k < width; k++) m[k] = z * g[k];
            }
            if (b->d_nodes) {
                const int64_t source = b->source[e];
                if ((uint64_t)source >= (uint64_t)b->rows) return (Wrong){e, source, (uint64_t)b->rows};
                float *restrict n = b->d_nodes + source * width;
                for (int64_t k = 0; k < width; k++) n[k] += z * g[k];
            }
        }
        if (b->d_baseline)
            for (int64_t k = 0; k < width; k++) b->d_baseline[k] += sums[k];
    }
    return none;
}

static PyObject *blend_backward(PyObject *self, PyObject *args) {
    Blend b;
    Held held;
    held.count = held.failed = 0;
    PyObject *grad, *gate, *baseline, *kept, *source, *d_gate, *d_baseline, *d_messages, *d_nodes;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOnn", &grad, &gate, &baseline, &kept, &source, &d_gate, &d_baseline,
                          &d_messages, &d_nodes, &b.first, &b.step))
        return NULL;
    b.grad = take(&held, grad, "grad", FLOATS, ANY, ANY);
    const Py_ssize_t edges = shape(&held, 0), width = shape(&held, 1), count = chosen(&held, edges, b.first, b.step);
    if (width > MOST_WIDTH) refuse(&held, "expected a width of at most 1024");
    b.gate = take(&held, gate, "gate", FLOATS, edges, FLAT);
    b.from = take(&held, baseline, "baseline", FLOATS, width, FLAT);
    b.kept = take(&held, kept, "kept", FLOATS | OPTIONAL, count, width);
    b.d_gate = take(&held, d_gate, "d_gate", FLOATS | WRITE | OPTIONAL, edges, FLAT);
    b.source = take(&held, source, "source", INDICES | OPTIONAL, edges, FLAT);
    b.d_baseline = take(&held, d_baseline, "d_baseline", FLOATS | WRITE | OPTIONAL, width, FLAT);
    b.d_messages = take(&held, d_messages, "d_messages", FLOATS | WRITE | OPTIONAL, edges, width);
    b.d_nodes = take(&held, d_nodes, "d_nodes", FLOATS | WRITE | OPTIONAL, ANY, width);
    b.rows = b.d_nodes ? shape(&held, 0) : 0;
    if (!b.kept != !b.d_gate || !b.source != !b.d_nodes)
        refuse(&held, "expected kept with d_gate, and source with d_nodes");
    if (!held.failed) {
        Wrong wrong;
        b.edges = edges, b.width = width;
        Py_BEGIN_ALLOW_THREADS;
        wrong = blend_back(&b);
        Py_END_ALLOW_THREADS;
        report(&held, wrong);
    }
    return done(&held);
}

/* Any type: rows of bytes. */
static PyObject *overwrite(PyObject *self, PyObject *args) {
    Held held;
    held.count = held.failed = 0;
    PyObject *messages, *is_open, *baseline;
    if (!PyArg_ParseTuple(args, "OOO", &messages, &is_open, &baseline)) return NULL;
    char *message = take(&held, messages, "messages", ANYTHING | WRITE, ANY, ANY);
    const Py_ssize_t edges = shape(&held, 0);
    const char *open = take(&held, is_open, "is_open", FLAGS, edges, FLAT);
    const char *with = take(&held, baseline, "baseline", ANYTHING, ANY, ANY);
    if (!held.failed) {
        const Py_buffer *all = &held.view[0], *one = &held.view[2];
        const Py_ssize_t bytes = one->len;
        if (all->itemsize != one->itemsize || (bytes ? all->len / bytes != edges || all->len % bytes : all->len))
            refuse(&held, "expected the baseline to be as large as one message, and of the same type");
        else {
            Py_BEGIN_ALLOW_THREADS;
            for (Py_ssize_t e = 0; e < edges; e++)
                if (!open[e]) memmove(message + e * bytes, with, bytes);
            Py_END_ALLOW_THREADS;
        }
    }
    return done(&held);
}

static PyMethodDef methods[] = {{"gates", gates, METH_VARARGS, "Locations of the gates of some edges."},
                                {"gates_backward", gates_backward, METH_VARARGS, "What goes back from them."},
                                {"blend", blend, METH_VARARGS, "z m + (1 - z) b."},
                                {"blend_backward", blend_backward, METH_VARARGS, "What goes back from it."},
                                {"overwrite", overwrite, METH_VARARGS, "The baseline in offset of some messages."},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fused", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fused(void) {
    if (!CAN_RUN) {
        PyErr_SetString(PyExc_ImportError, "made for processors with AVX2");
        return NULL;
    }
    return PyModule_Create(&module);
}
