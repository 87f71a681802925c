/* What is done to every message, and what goes back from it. First the inner loop of a gate network, all of it while an
 * edge's rows are in registers:
 *
 *   h        = sum over parts of weight[e] * table[index[e] * stride + place]  (+ dense[e])
 *   location = clamp(sum_k relu(h[k] / sqrt(mean(h^2) + eps) * gamma[k] + beta[k]) * out[k] + bias, -limit, limit)
 *
 * and its gradient; then z m + (1 - z) b and its gradient; then hard gates, which overwrite what is shut and do not
 * touch what is open. Of some edges alone, first, first + step, ..., a gradient is taken. Called by fused.py with
 * addresses; kernels.py and messages.py have the same in PyTorch, for every other device and precision.
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

typedef struct {
    float *table;
    const int64_t *index;
    const float *weight; /* NULL: 1 */
    int64_t stride, place;
    uint64_t rows; /* an index is below it */
} Part;

typedef struct {
    int64_t edges, width, parts;
    Part part[MOST_PARTS];
    const float *dense; /* NULL, or [edges, width] */
    const float *gamma, *beta, *out;
    float bias, limit;
    float *location;         /* [edges] */
    int64_t first, step;     /* which edges are kept for the backward pass */
    float *normal;           /* NULL, or [kept, width] */
    float *inverse, *raw;    /* [kept] what normal was multiplied by, and the location before it was clamped */
} Gates;

static inline float *row(const Part *part, int64_t edge, int64_t width) {
    return part->table + (part->index[edge] * part->stride + part->place) * width;
}

#define SUM(v) (((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])))

/* -1, or the first edge whose index is out of range. */
WIDE static inline __attribute__((always_inline)) int64_t run(const Gates *g, const int64_t vectors) {
    const int64_t width = vectors * LANES;
    const Lanes *gamma = (const Lanes *)g->gamma, *beta = (const Lanes *)g->beta, *out = (const Lanes *)g->out;
    const Lanes zero = {0};
    Lanes h[MOST_WIDTH / LANES];
    int64_t next = g->normal ? g->first : -1, kept = 0;
    for (int64_t e = 0; e < g->edges; e++) {
        if (e + AHEAD < g->edges)
            for (int64_t p = 0; p < g->parts; p++) {
                const char *soon = (const char *)row(&g->part[p], e + AHEAD, width);
                for (int64_t byte = 0; byte < width * 4; byte += 64) __builtin_prefetch(soon + byte);
            }
        const Lanes *dense = g->dense ? (const Lanes *)(g->dense + e * width) : NULL;
        for (int64_t k = 0; k < vectors; k++) h[k] = dense ? dense[k] : zero;
        for (int64_t p = 0; p < g->parts; p++) {
            if ((uint64_t)g->part[p].index[e] >= g->part[p].rows) return e;
            const Lanes *t = (const Lanes *)row(&g->part[p], e, width);
            const float w = g->part[p].weight ? g->part[p].weight[e] : 1.0f;
            for (int64_t k = 0; k < vectors; k++) h[k] += w * t[k];
        }
        Lanes squares = zero, sums = zero;
        for (int64_t k = 0; k < vectors; k++) squares += h[k] * h[k];
        const float scale = 1.0f / sqrtf(SUM(squares) / (float)width + 1e-5f);
        for (int64_t k = 0; k < vectors; k++) {
            const Lanes y = h[k] * scale * gamma[k] + beta[k];
            sums += (Lanes)((Bits)y & ~(Bits)(y <= zero)) * out[k]; /* what is not a number stays so */
        }
        const float location = SUM(sums) + g->bias;
        g->location[e] = location > g->limit ? g->limit : location < -g->limit ? -g->limit : location;
        if (e == next) {
            Lanes *normal = (Lanes *)(g->normal + kept * width);
            for (int64_t k = 0; k < vectors; k++) normal[k] = h[k] * scale;
            g->inverse[kept] = scale;
            g->raw[kept++] = location;
            next += g->step;
        }
    }
    return -1;
}

/* Of known widths all is kept in registers. */
WIDE static int64_t run_32(const Gates *g) { return run(g, 32 / LANES); }
WIDE static int64_t run_64(const Gates *g) { return run(g, 64 / LANES); }
WIDE static int64_t run_any(const Gates *g) { return run(g, g->width / LANES); }

#define FLOATS(address) ((float *)(uintptr_t)(address))
#define INDICES(address) ((const int64_t *)(uintptr_t)(address))

/* Reads a tuple of tuples; false with an exception set if it does not fit. */
static int read_parts(PyObject *parts, Py_ssize_t width, Part *found, int64_t *count) {
    *count = PyTuple_Size(parts);
    if (*count > MOST_PARTS || width < LANES || width > MOST_WIDTH || width % LANES) {
        PyErr_SetString(PyExc_ValueError, "too many parts, or a width that does not fit");
        return 0;
    }
    for (Py_ssize_t p = 0; p < *count; p++) {
        unsigned long long table, index, weight;
        Py_ssize_t stride, place, rows;
        if (!PyArg_ParseTuple(PyTuple_GetItem(parts, p), "KKKnnn", &table, &index, &weight, &stride, &place, &rows))
            return 0;
        found[p] = (Part){FLOATS(table), INDICES(index), FLOATS(weight), stride, place, (uint64_t)rows};
    }
    return 1;
}

static PyObject *gates(PyObject *self, PyObject *args) {
    Gates g;
    PyObject *parts;
    unsigned long long dense, gamma, beta, out, location, normal, inverse, raw;
    Py_ssize_t edges, width, first, step;
    if (!PyArg_ParseTuple(args, "nnO!nnffKKKKKKKK", &edges, &width, &PyTuple_Type, &parts, &first, &step, &g.bias,
                          &g.limit, &dense, &gamma, &beta, &out, &location, &normal, &inverse, &raw))
        return NULL;
    if (!read_parts(parts, width, g.part, &g.parts)) return NULL;
    g.edges = edges, g.width = width, g.first = first, g.step = step;
    g.dense = FLOATS(dense), g.gamma = FLOATS(gamma), g.beta = FLOATS(beta), g.out = FLOATS(out);
    g.location = FLOATS(location), g.normal = FLOATS(normal), g.inverse = FLOATS(inverse), g.raw = FLOATS(raw);
    int64_t wrong;
    Py_BEGIN_ALLOW_THREADS;
    wrong = (width == 32 ? run_32 : width == 64 ? run_64 : run_any)(&g);
    Py_END_ALLOW_THREADS;
    if (wrong >= 0) return PyErr_Format(PyExc_IndexError, "index out of range at edge %lld", (long long)wrong);
    Py_RETURN_NONE;
}

typedef struct {
    int64_t edges, width, parts; /* of the edges that a gradient is taken from */
    int64_t first, step;
    Part part[MOST_PARTS];           /* as in gates, but of tables that the gradient is added to */
    const float *normal, *inverse, *raw; /* as gates left them */
    const float *grad;               /* of all edges */
    const float *gamma, *beta, *out;
    float limit;
    float *d_gamma, *d_beta, *d_out, *d_bias; /* added to */
    float *dense;                    /* NULL, or [edges, width] */
} Backward;

WIDE static inline __attribute__((always_inline)) void back(const Backward *b, const int64_t vectors) {
    const int64_t width = vectors * LANES;
    const Lanes *gamma = (const Lanes *)b->gamma, *beta = (const Lanes *)b->beta, *out = (const Lanes *)b->out;
    const Lanes zero = {0};
    /* Of the gradients that reach each ReLU, and of those times what went into LayerNorm's weight: the rest follows. */
    Lanes reached[MOST_WIDTH / LANES], weighted[MOST_WIDTH / LANES], d[MOST_WIDTH / LANES], through[MOST_WIDTH / LANES];
    for (int64_t k = 0; k < vectors; k++) reached[k] = weighted[k] = zero, through[k] = out[k] * gamma[k];
    double d_bias = 0;
    for (int64_t r = 0; r < b->edges; r++) {
        const int64_t e = b->first + r * b->step;
        const Lanes *normal = (const Lanes *)(b->normal + r * width);
        float g = b->grad[e];
        /* A location beyond its limit takes no gradient that points further outward. */
        if ((b->raw[r] > b->limit && g < 0) || (b->raw[r] < -b->limit && g > 0)) g = 0;
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
        const float share = SUM(dot) / (float)width, inverse = b->inverse[r];
        for (int64_t k = 0; k < vectors; k++) d[k] = (d[k] - normal[k] * share) * inverse;
        for (int64_t p = 0; p < b->parts; p++) {
            const float w = b->part[p].weight ? b->part[p].weight[e] : 1.0f;
            Lanes *to = (Lanes *)row(&b->part[p], e, width);
            for (int64_t k = 0; k < vectors; k++) to[k] += d[k] * w;
        }
        if (b->dense) {
            Lanes *to = (Lanes *)(b->dense + r * width);
            for (int64_t k = 0; k < vectors; k++) to[k] = d[k];
        }
    }
    Lanes *d_gamma = (Lanes *)b->d_gamma, *d_beta = (Lanes *)b->d_beta, *d_out = (Lanes *)b->d_out;
    for (int64_t k = 0; k < vectors; k++) {
        d_gamma[k] += out[k] * weighted[k];
        d_beta[k] += out[k] * reached[k];
        d_out[k] += gamma[k] * weighted[k] + beta[k] * reached[k];
    }
    *b->d_bias += (float)d_bias;
}

WIDE static void back_32(const Backward *b) { back(b, 32 / LANES); }
WIDE static void back_any(const Backward *b) { back(b, b->width / LANES); }

static PyObject *gates_backward(PyObject *self, PyObject *args) {
    Backward b;
    PyObject *parts;
    unsigned long long normal, inverse, raw, grad, gamma, beta, out, d_gamma, d_beta, d_out, d_bias, dense;
    Py_ssize_t edges, width, first, step;
    if (!PyArg_ParseTuple(args, "nnO!nnfKKKKKKKKKKKK", &edges, &width, &PyTuple_Type, &parts, &first, &step, &b.limit,
                          &normal, &inverse, &raw, &grad, &gamma, &beta, &out, &d_gamma, &d_beta, &d_out, &d_bias,
                          &dense))
        return NULL;
    if (!read_parts(parts, width, b.part, &b.parts)) return NULL;
    b.edges = edges, b.width = width, b.first = first, b.step = step;
    b.normal = FLOATS(normal), b.inverse = FLOATS(inverse), b.raw = FLOATS(raw), b.grad = FLOATS(grad);
    b.gamma = FLOATS(gamma), b.beta = FLOATS(beta), b.out = FLOATS(out);
    b.d_gamma = FLOATS(d_gamma), b.d_beta = FLOATS(d_beta), b.d_out = FLOATS(d_out), b.d_bias = FLOATS(d_bias);
    b.dense = FLOATS(dense);
    Py_BEGIN_ALLOW_THREADS;
    (width == 32 ? back_32 : back_any)(&b);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* Messages [edges, width] to z m + (1 - z) b, perhaps in place; those that are kept as they were go to kept. */
WIDE static void blended(int64_t edges, int64_t width, const float *messages, const float *gate, const float *baseline,
                         float *to, float *kept, int64_t first, int64_t step) {
    int64_t next = kept ? first : -1;
    for (int64_t e = 0; e < edges; e++) {
        const float *m = messages + e * width;
        if (e == next) {
            memcpy(kept, m, width * sizeof(float));
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
    unsigned long long messages, gate, baseline, to, kept;
    Py_ssize_t edges, width, first, step;
    if (!PyArg_ParseTuple(args, "nnnnKKKKK", &edges, &width, &first, &step, &messages, &gate, &baseline, &to, &kept))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    blended(edges, width, FLOATS(messages), FLOATS(gate), FLOATS(baseline), FLOATS(to), FLOATS(kept), first, step);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

#define AT_ONCE 256 /* sums of so many first: a long sum of small numbers loses the last of them */

typedef struct {
    int64_t edges, width, rows, first, step;
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

/* -1, or the first edge whose sender is out of range. */
WIDE static int64_t blend_back(const Blend *b) {
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
                if ((uint64_t)b->source[e] >= (uint64_t)b->rows) return e;
                float *restrict n = b->d_nodes + b->source[e] * width;
                for (int64_t k = 0; k < width; k++) n[k] += z * g[k];
            }
        }
        if (b->d_baseline)
            for (int64_t k = 0; k < width; k++) b->d_baseline[k] += sums[k];
    }
    return -1;
}

static PyObject *blend_backward(PyObject *self, PyObject *args) {
    unsigned long long grad, gate, source, kept, from, d_gate, d_baseline, d_messages, d_nodes;
    Py_ssize_t edges, width, rows, first, step;
    if (!PyArg_ParseTuple(args, "nnnnnKKKKKKKKK", &edges, &width, &rows, &first, &step, &grad, &gate, &source, &kept,
                          &from, &d_gate, &d_baseline, &d_messages, &d_nodes))
        return NULL;
    if (width > MOST_WIDTH) {
        PyErr_SetString(PyExc_ValueError, "a width that does not fit");
        return NULL;
    }
    const Blend b = {edges, width, rows, first, step, FLOATS(grad), FLOATS(gate), INDICES(source), FLOATS(kept),
                     FLOATS(from), FLOATS(d_gate), FLOATS(d_baseline), FLOATS(d_messages), FLOATS(d_nodes)};
    int64_t wrong;
    Py_BEGIN_ALLOW_THREADS;
    wrong = blend_back(&b);
    Py_END_ALLOW_THREADS;
    if (wrong >= 0) return PyErr_Format(PyExc_IndexError, "index out of range at edge %lld", (long long)wrong);
    Py_RETURN_NONE;
}

static PyObject *overwrite(PyObject *self, PyObject *args) {
    unsigned long long messages, open, baseline;
    Py_ssize_t edges, bytes;
    if (!PyArg_ParseTuple(args, "nnKKK", &edges, &bytes, &messages, &open, &baseline)) return NULL;
    char *message = (char *)(uintptr_t)messages;
    const char *is_open = (const char *)(uintptr_t)open, *with = (const char *)(uintptr_t)baseline;
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t e = 0; e < edges; e++)
        if (!is_open[e]) memcpy(message + e * bytes, with, bytes);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"gates", gates, METH_VARARGS, "Locations of the gates of some edges."},
                                {"gates_backward", gates_backward, METH_VARARGS, "What goes back from them."},
                                {"blend", blend, METH_VARARGS, "z m + (1 - z) b."},
                                {"blend_backward", blend_backward, METH_VARARGS, "What goes back from z m + (1 - z) b."},
                                {"overwrite", overwrite, METH_VARARGS, "The baseline in place of some messages."},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_fused", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fused(void) {
    if (!CAN_RUN) {
        PyErr_SetString(PyExc_ImportError, "made for processors with AVX2");
        return NULL;
    }
    return PyModule_Create(&module);
}
