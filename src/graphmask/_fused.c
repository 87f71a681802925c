/* What is done to every message, and what goes back from it. First the inner loop of a gate network, all of it while an
 * edge's rows are in registers:
 *
 *   h        = sum over parts of weight[e] * table[index[e] * stride + place]  (+ dense[e])
 *   location = sum_k relu(h[k] / sqrt(mean(h^2) + eps) * gamma[k] + beta[k]) * out[k]
 *
 * and its gradient; then hard gates, which overwrite what is shut and do not touch what is open; then the gradient of
 * z m + (1 - z) b. Called by fused.py with addresses; kernels.py and messages.py have the same in PyTorch, for every
 * other device and precision.
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
    const float *table;
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
    float *location;         /* [edges] */
    float *normal, *inverse; /* [edges, width] and [edges] for the backward pass, or NULL */
} Gates;

static inline const float *row(const Part *part, int64_t edge, int64_t width) {
    return part->table + (part->index[edge] * part->stride + part->place) * width;
}

#define SUM(v) (((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])))

/* -1, or the first edge whose index is out of range. */
WIDE static inline __attribute__((always_inline)) int64_t run(const Gates *g, const int64_t vectors) {
    const int64_t width = vectors * LANES;
    const Lanes *gamma = (const Lanes *)g->gamma, *beta = (const Lanes *)g->beta, *out = (const Lanes *)g->out;
    const Lanes zero = {0};
    Lanes h[MOST_WIDTH / LANES];
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
            sums += (Lanes)((Bits)y & (Bits)(y > zero)) * out[k];
        }
        g->location[e] = SUM(sums);
        if (g->normal) {
            Lanes *normal = (Lanes *)(g->normal + e * width);
            for (int64_t k = 0; k < vectors; k++) normal[k] = h[k] * scale;
            g->inverse[e] = scale;
        }
    }
    return -1;
}

/* Of known widths all is kept in registers. */
WIDE static int64_t run_32(const Gates *g) { return run(g, 32 / LANES); }
WIDE static int64_t run_64(const Gates *g) { return run(g, 64 / LANES); }
WIDE static int64_t run_any(const Gates *g) { return run(g, g->width / LANES); }

static PyObject *gates(PyObject *self, PyObject *args) {
    Gates g;
    PyObject *parts;
    unsigned long long dense, gamma, beta, out, location, normal, inverse;
    Py_ssize_t edges, width;
    if (!PyArg_ParseTuple(args, "nnO!KKKKKKK", &edges, &width, &PyTuple_Type, &parts, &dense, &gamma, &beta, &out,
                          &location, &normal, &inverse))
        return NULL;
    g.parts = PyTuple_Size(parts);
    if (g.parts > MOST_PARTS || width < LANES || width > MOST_WIDTH || width % LANES) {
        PyErr_SetString(PyExc_ValueError, "too many parts, or a width that does not fit");
        return NULL;
    }
    for (Py_ssize_t p = 0; p < g.parts; p++) {
        unsigned long long table, index, weight;
        Py_ssize_t stride, place, rows;
        if (!PyArg_ParseTuple(PyTuple_GetItem(parts, p), "KKKnnn", &table, &index, &weight, &stride, &place, &rows))
            return NULL;
        g.part[p] = (Part){(const float *)(uintptr_t)table, (const int64_t *)(uintptr_t)index,
                           (const float *)(uintptr_t)weight, stride, place, (uint64_t)rows};
    }
    g.edges = edges, g.width = width;
    g.dense = (const float *)(uintptr_t)dense;
    g.gamma = (const float *)(uintptr_t)gamma;
    g.beta = (const float *)(uintptr_t)beta;
    g.out = (const float *)(uintptr_t)out;
    g.location = (float *)(uintptr_t)location;
    g.normal = (float *)(uintptr_t)normal;
    g.inverse = (float *)(uintptr_t)inverse;
    int64_t wrong;
    Py_BEGIN_ALLOW_THREADS;
    wrong = (width == 32 ? run_32 : width == 64 ? run_64 : run_any)(&g);
    Py_END_ALLOW_THREADS;
    if (wrong >= 0) return PyErr_Format(PyExc_IndexError, "index out of range at edge %lld", (long long)wrong);
    Py_RETURN_NONE;
}

typedef struct {
    int64_t edges, width, parts;
    const int64_t *index;                /* [edges, parts] rows of the table, all of them within it */
    const float *scale;                  /* NULL, or [edges, parts] */
    const float *normal, *inverse;       /* as gates left them */
    const float *grad;                   /* [edges] */
    const float *gamma, *beta, *out;
    float *table, *d_gamma, *d_beta, *d_out; /* added to */
    float *dense;                        /* NULL, or [edges, width] */
} Backward;

WIDE static inline __attribute__((always_inline)) void back(const Backward *b, const int64_t vectors) {
    const int64_t width = vectors * LANES;
    const Lanes *gamma = (const Lanes *)b->gamma, *beta = (const Lanes *)b->beta, *out = (const Lanes *)b->out;
    Lanes *d_gamma = (Lanes *)b->d_gamma, *d_beta = (Lanes *)b->d_beta, *d_out = (Lanes *)b->d_out;
    const Lanes zero = {0};
    Lanes d[MOST_WIDTH / LANES];
    for (int64_t e = 0; e < b->edges; e++) {
        const Lanes *normal = (const Lanes *)(b->normal + e * width);
        const float g = b->grad[e];
        Lanes dot = zero;
        for (int64_t k = 0; k < vectors; k++) {
            const Lanes y = normal[k] * gamma[k] + beta[k];
            const Bits on = (Bits)(y > zero);
            d_out[k] += (Lanes)((Bits)y & on) * g;
            const Lanes dy = (Lanes)((Bits)out[k] & on) * g;
            d_beta[k] += dy;
            d_gamma[k] += dy * normal[k];
            d[k] = dy * gamma[k];
            dot += d[k] * normal[k];
        }
        /* LayerNorm backwards; its centring is in the parameters. */
        const float share = SUM(dot) / (float)width, inverse = b->inverse[e];
        for (int64_t k = 0; k < vectors; k++) d[k] = (d[k] - normal[k] * share) * inverse;
        for (int64_t p = 0; p < b->parts; p++) {
            const float w = b->scale ? b->scale[e * b->parts + p] : 1.0f;
            Lanes *row = (Lanes *)(b->table + b->index[e * b->parts + p] * width);
            for (int64_t k = 0; k < vectors; k++) row[k] += d[k] * w;
        }
        if (b->dense) {
            Lanes *row = (Lanes *)(b->dense + e * width);
            for (int64_t k = 0; k < vectors; k++) row[k] = d[k];
        }
    }
}

WIDE static void back_32(const Backward *b) { back(b, 32 / LANES); }
WIDE static void back_any(const Backward *b) { back(b, b->width / LANES); }

static PyObject *gates_backward(PyObject *self, PyObject *args) {
    unsigned long long at[13];
    Py_ssize_t edges, width, parts;
    if (!PyArg_ParseTuple(args, "nnnKKKKKKKKKKKKK", &edges, &width, &parts, at, at + 1, at + 2, at + 3, at + 4, at + 5,
                          at + 6, at + 7, at + 8, at + 9, at + 10, at + 11, at + 12))
        return NULL;
    if (width < LANES || width > MOST_WIDTH || width % LANES) {
        PyErr_SetString(PyExc_ValueError, "a width that does not fit");
        return NULL;
    }
#define AT(n) ((float *)(uintptr_t)at[n])
    const Backward b = {edges, width, parts, (const int64_t *)(uintptr_t)at[0], AT(1), AT(2), AT(3), AT(4), AT(5),
                        AT(6), AT(7), AT(8), AT(9), AT(10), AT(11), AT(12)};
    Py_BEGIN_ALLOW_THREADS;
    (width == 32 ? back_32 : back_any)(&b);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

#define AT_ONCE 256 /* sums of so many first: a long sum of small numbers loses the last of them */

/* -1, or the first edge whose sender is out of range. */
WIDE static int64_t blend_back(int64_t edges, int64_t width, int64_t rows, const float *grad, const float *gate,
                               const int64_t *source, float *baseline, float *messages, float *nodes) {
    float sums[MOST_WIDTH];
    for (int64_t start = 0; start < edges; start += AT_ONCE) {
        const int64_t stop = start + AT_ONCE < edges ? start + AT_ONCE : edges;
        if (baseline) memset(sums, 0, width * sizeof(float));
        for (int64_t e = start; e < stop; e++) {
            const float *restrict g = grad + e * width;
            const float z = gate[e];
            if (baseline)
                for (int64_t k = 0; k < width; k++) sums[k] += (1 - z) * g[k];
            if (messages) {
                float *restrict m = messages + e * width;
                for (int64_t k = 0; k < width; k++) m[k] = z * g[k];
            }
            if (nodes) {
                if ((uint64_t)source[e] >= (uint64_t)rows) return e;
                float *restrict n = nodes + source[e] * width;
                for (int64_t k = 0; k < width; k++) n[k] += z * g[k];
            }
        }
        if (baseline)
            for (int64_t k = 0; k < width; k++) baseline[k] += sums[k];
    }
    return -1;
}

static PyObject *blend_backward(PyObject *self, PyObject *args) {
    unsigned long long grad, gate, source, baseline, messages, nodes;
    Py_ssize_t edges, width, rows;
    if (!PyArg_ParseTuple(args, "nnnKKKKKK", &edges, &width, &rows, &grad, &gate, &source, &baseline, &messages, &nodes))
        return NULL;
    if (width > MOST_WIDTH) {
        PyErr_SetString(PyExc_ValueError, "a width that does not fit");
        return NULL;
    }
    int64_t wrong;
    Py_BEGIN_ALLOW_THREADS;
    wrong = blend_back(edges, width, rows, (const float *)(uintptr_t)grad, (const float *)(uintptr_t)gate,
                       (const int64_t *)(uintptr_t)source, (float *)(uintptr_t)baseline, (float *)(uintptr_t)messages,
                       (float *)(uintptr_t)nodes);
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
