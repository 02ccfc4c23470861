/* The kernels of the parameter store: what is too slow in NumPy, and nothing else. C99, no Python.
 *
 * Callers check every size first (store.py, parts.py); a kernel allocates nothing and keeps nothing. Each has a NumPy
 * reference (reference.py, optimizers.py) with the same bits: build with -ffp-contract=off.
 * A place is part << 32 | row; ABSENT where a key has no row; with the top bit where the row is not hot (parts.py). */
#define _XOPEN_SOURCE 600
#define _DEFAULT_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#endif
#ifdef __SSE2__
#include <immintrin.h>
#endif

#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif
#define ABSENT UINT64_MAX
#define ASLEEP (UINT64_C(1) << 63)
#define MULTIPLIER UINT64_C(0x9E3779B97F4A7C15)
#define EACH for (int64_t d = 0; d < n; d++)
#define SQUARE (q ? q[d] : g[d] * g[d])
enum { AHEAD = 12, LINE_WORDS = 16, AHEAD_BYTES = 2048 };
enum { COLD = 31, HEAT = 29, HEAT_MAX = 3 }; /* of a mark: the tier's bit, where the heat begins; how hot a row can be */
enum { QUEUED = 128 }; /* pages that a queue reads at once: more make no disk faster */
enum { WARM = 5, STAMPS = 256 }; /* mark >> HEAT of a warm row; the stamp is the low byte of an epoch (parts.py) */
#define NUMBER ((UINT32_C(1) << HEAT) - 1)
enum { SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM, RMSPROP, FTRL }; /* Optimizer.KERNEL */

struct entry { uint64_t key; uint32_t epoch, mark; };
struct part {
    struct entry *entries;
    uint32_t *rows, *index, *owners; /* owners: NULL where no row is or was cold: each row then lies at its number */
    uint64_t size, capacity, mask, shift, multiplier, hot, slots;
    char *warm_rows;
    uint32_t *warm_owners;
    uint64_t warm, warm_slots;
};
struct format {
    int64_t width, words, half, slots, normal, counters;
    uint64_t seed;
    const float *first;
    float factor, low;
};

/* The digest of this file (compiling.py), so that a library of another version is told apart. */
uint64_t source_digest(void) { return SOURCE_DIGEST; }

static uint32_t *row_of(const struct part *parts, const struct format *f, uint64_t place) {
    const struct part *p = parts + (place >> 32);
    uint64_t row = place & UINT32_MAX;
    return p->rows + (p->owners ? p->entries[row].mark & NUMBER : row) * (uint64_t)f->words;
}

/* The slot of the index where the search for a key begins: no one who does not know the multiplier can say it. */
static uint64_t first_slot(const struct part *p, uint64_t key) { return key * p->multiplier >> p->shift; }

/* The slot of the index that names the key's row, or the empty one where it would be named, from the first one on. */
static uint64_t slot_of(const struct part *p, uint64_t key, uint64_t slot) {
    while (p->index[slot] && p->entries[p->index[slot] - 1].key != key) slot = (slot + 1) & p->mask;
    return slot;
}

static uint64_t mixed(uint64_t z) {
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    return (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
}

static int32_t sum_of_quarters(uint64_t z) {
    return (int32_t)((z & 0xFFFF) + (z >> 16 & 0xFFFF) + (z >> 32 & 0xFFFF) + (z >> 48));
}

static float initial(const struct format *f, uint64_t key, int64_t d) {
    uint64_t z = mixed(key + ((uint64_t)d + 1 + f->seed) * MULTIPLIER);
    if (!f->normal) return (float)(int32_t)(z >> 40) * f->factor - f->low;
    z ^= z >> 31;
    uint64_t more = mixed(z + MULTIPLIER);
    return (float)(sum_of_quarters(z) + sum_of_quarters(more ^ more >> 31) - 4 * 0xFFFF) * f->factor;
}

static float widened(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t narrowed(float value) { /* to nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* The words of a row that a warm one has rounded: from the first float32 on, up to the counters at its end. */
static int64_t rounded_from(const struct format *f) { return f->half ? f->words - f->slots : 0; }

static int64_t warm_bytes(const struct format *f) {
    return 2 * (f->words + rounded_from(f) + f->counters);
}

/* Copies a row to a warm one; returns whether rounding changed it. */
static int pack(const struct format *f, const uint32_t *words, char *to) {
    int64_t begin = rounded_from(f), end = f->words - f->counters;
    uint32_t lost = 0;
    memcpy(to, words, 4 * (size_t)begin);
    to += 4 * begin;
    for (int64_t d = begin; d < end; d++, to += 2) {
        float value;
        memcpy(&value, words + d, 4);
        uint16_t half = narrowed(value);
        lost |= words[d] ^ (uint32_t)half << 16;
        memcpy(to, &half, 2);
    }
    memcpy(to, words + end, 4 * (size_t)f->counters);
    return lost != 0;
}

static void unpack(const struct format *f, const char *from, uint32_t *words) {
    int64_t begin = rounded_from(f), end = f->words - f->counters;
    memcpy(words, from, 4 * (size_t)begin);
    from += 4 * begin;
    for (int64_t d = begin; d < end; d++, from += 2) {
        uint16_t half;
        memcpy(&half, from, 2);
        words[d] = (uint32_t)half << 16;
    }
    memcpy(words + end, from, 4 * (size_t)f->counters);
}

static char *warm_row_of(const struct part *parts, const struct format *f, uint64_t place) {
    const struct part *p = parts + ((place & ~ASLEEP) >> 32);
    return p->warm_rows + (p->entries[place & UINT32_MAX].mark & NUMBER) * (uint64_t)warm_bytes(f);
}

void widen(int64_t n, const uint16_t *halves, float *values) { EACH values[d] = widened(halves[d]); }

void narrow(int64_t n, const float *values, uint16_t *halves) { EACH halves[d] = narrowed(values[d]); }

int64_t locate(const struct part *parts, int64_t shift, int64_t n, const uint64_t *keys, uint64_t *places) {
    int64_t absent = 0;
    for (int64_t i = -2 * AHEAD; i < n; i++) { /* until a key is looked for, its place holds its first slot */
        if (i + 2 * AHEAD < n) {
            uint64_t key = keys[i + 2 * AHEAD];
            places[i + 2 * AHEAD] = first_slot(parts + (key >> shift), key);
            PREFETCH(parts[key >> shift].index + places[i + 2 * AHEAD]);
        }
        if (i + AHEAD >= 0 && i + AHEAD < n) {
            const struct part *p = parts + (keys[i + AHEAD] >> shift);
            uint32_t row = p->index[places[i + AHEAD]];
            if (row) PREFETCH(p->entries + (row - 1));
        }
        if (i < 0) continue;
        const struct part *p = parts + (keys[i] >> shift);
        uint32_t row = p->index[slot_of(p, keys[i], places[i])];
        places[i] = row ? keys[i] >> shift << 32 | (row - 1) | (uint64_t)(p->entries[row - 1].mark >> COLD) << 63 : ABSENT;
        absent += !row;
    }
    return absent;
}

/* Gives a row of a part with owners the next slot, where rows lie dense. It is cool as yet. */
static void settle(struct part *p, uint64_t row) {
    p->owners[p->hot] = (uint32_t)row;
    p->entries[row].mark = (uint32_t)p->hot++;
}

/* Appends a row with its initial values for every key without one; returns how many keys found no room. */
int64_t insert(struct part *parts, const struct format *f, int64_t shift, int64_t n, const uint64_t *keys,
               uint64_t *places, uint32_t epoch) {
    int64_t without = 0;
    for (int64_t i = 0; i < n; i++) {
        if (places[i] != ABSENT) continue;
        struct part *p = parts + (keys[i] >> shift);
        if (p->size >= p->capacity || (p->owners && p->hot >= p->slots)) { without++; continue; }
        uint64_t row = p->size++;
        places[i] = keys[i] >> shift << 32 | row;
        p->entries[row] = (struct entry){keys[i], epoch, 0};
        if (p->owners) settle(p, row);
        p->index[slot_of(p, keys[i], first_slot(p, keys[i]))] = (uint32_t)(row + 1);
        uint32_t *words = row_of(parts, f, places[i]);
        for (int64_t d = 0; d < f->width; d++) {
            float value = initial(f, keys[i], d);
            if (f->half) ((uint16_t *)words)[d] = narrowed(value);
            else memcpy(words + d, &value, 4);
        }
        if (f->half && f->width % 2) ((uint16_t *)words)[f->width] = 0;
        memcpy(words + f->words - f->slots, f->first, 4 * (size_t)f->slots);
    }
    return without;
}

void rebuild(struct part *p) {
    memset(p->index, 0, 4 * (p->mask + 1));
    for (uint64_t row = 0; row < p->size; row++) {
        if (row + AHEAD < p->size) PREFETCH(p->index + first_slot(p, p->entries[row + AHEAD].key));
        uint64_t slot = first_slot(p, p->entries[row].key); /* keys differ: an empty slot is all that is sought */
        while (p->index[slot]) slot = (slot + 1) & p->mask;
        p->index[slot] = (uint32_t)(row + 1);
    }
}

/* Gives an empty part the keys of its rows, in their order: entries and index. */
void adopt(struct part *p, int64_t n, const uint64_t *keys, uint32_t epoch) {
    for (int64_t row = 0; row < n; row++) p->entries[row] = (struct entry){keys[row], epoch, 0};
    p->size = (uint64_t)n;
    rebuild(p);
}

/* base^k by squaring: the same bits everywhere, which powf does not promise. */
static float power(float base, int64_t k) {
    float result = 1;
    for (; k > 0; k >>= 1, base = base * base) if (k & 1) result = result * base;
    return result;
}

/* A float counts steps exactly up to 2^24; there it stops. */
static int64_t steps_of(float count) { return count < 16777216.0f ? (int64_t)count : 16777216; }

/* The slots of a row that makes every step (Moving in optimizers.py): momentum m, squares v, NULL where there are none,
 * and t, the steps that it has seen. */
struct moving { float *m, *v, *t; };

static struct moving moving_of(int64_t kind, float *slots, int64_t count, int64_t n) {
    struct moving row = {NULL, NULL, slots + count - 1};
    if (kind == SGD || count > n + 1) row.m = slots;
    if (kind != SGD) row.v = slots + count - 1 - n;
    return row;
}

/* The steps that a row has missed: all rows have made `clock` of them, this one has seen t. clock below 0: each row has a
 * clock of its own. factors: [6][last + 1], as Moving.factors. is_scaled: rate and squares scale the moves. */
struct gap { int64_t seen, now, steps; int is_scaled; float kept, step, epsilon; };

static struct gap gap_of(int64_t kind, float t, float rate, const float *h, const float *factors, int64_t last,
                         float clock) {
    struct gap gap = {0, 0, 0, kind == ADAM, 1, 0, 0};
    gap.seen = t >= 0 ? steps_of(t) : 0; /* a damaged row: no index out of a NaN */
    gap.now = clock > (t >= 0 ? t : 0) ? steps_of(clock) : gap.seen;
    if (gap.now <= gap.seen || !gap.seen) return gap; /* a new row begins now: nobody has read it decayed */
    int64_t width = last + 1, at = gap.now < last ? gap.now : last;
    gap.steps = gap.now - gap.seen < last ? gap.now - gap.seen : last;
    gap.step = factors[2 * width + (gap.seen < last ? gap.seen : last)] -
               factors[3 * width + gap.steps] * factors[2 * width + at];
    if (gap.is_scaled) gap.step = rate * gap.step;
    gap.epsilon = factors[width + at];
    if (gap.is_scaled && h[4] != 0) gap.kept = power(1 - rate * h[4], gap.now - gap.seen);
    return gap;
}

/* Moves weights by these steps: momentum fades first, then they decay. */
static void move(float *w, const struct moving *row, int64_t n, const struct gap *gap) {
    if (!gap->steps || !row->m) return;
    if (gap->is_scaled) EACH w[d] = gap->kept * (w[d] - gap->step * row->m[d] / (sqrtf(row->v[d]) + gap->epsilon));
    else EACH w[d] = w[d] - gap->step * row->m[d];
}

/* Gives a row the steps that it has missed, and counts the one that comes; returns its number. */
static int64_t catch_up(float *w, const struct moving *row, int64_t n, const struct gap *gap, const float *factors,
                        int64_t last) {
    move(w, row, n, gap);
    if (gap->steps && row->m) EACH row->m[d] = factors[4 * (last + 1) + gap->steps] * row->m[d];
    if (gap->steps && row->v) EACH row->v[d] = factors[5 * (last + 1) + gap->steps] * row->v[d];
    row->t[0] = (float)(gap->now + 1);
    return gap->now + 1;
}

/* clocks: NULL, or those of steps that rows have not made yet: weights as if they had. A warm row is read where it is.
 * `wide` holds the words of one row. */
void gather(const struct part *parts, const struct format *f, int64_t kind, int64_t count, const uint64_t *keys,
            const uint64_t *places, float *out, const float *rates, const float *clocks, const float *h,
            const float *factors, int64_t last, uint32_t *wide) {
    int64_t n = f->width;
    for (int64_t i = 0; i < count; i++, out += n) {
        if (i + AHEAD < count && places[i + AHEAD] >= ASLEEP && places[i + AHEAD] != ABSENT)
            PREFETCH(warm_row_of(parts, f, places[i + AHEAD]));
        else if (i + AHEAD < count && places[i + AHEAD] != ABSENT) {
            const uint32_t *ahead = row_of(parts, f, places[i + AHEAD]);
            for (int64_t d = 0; d < (clocks ? f->words : f->words - f->slots); d += LINE_WORDS) PREFETCH(ahead + d);
        }
        int is_warm = places[i] >= ASLEEP && places[i] != ABSENT;
        if (is_warm) unpack(f, warm_row_of(parts, f, places[i]), wide);
        uint32_t *words = is_warm ? wide : places[i] == ABSENT ? NULL : row_of(parts, f, places[i]);
        if (words && !f->half) memcpy(out, words, 4 * (size_t)f->width);
        else for (int64_t d = 0; d < f->width; d++) {
            if (words) out[d] = widened(((const uint16_t *)words)[d]);
            else out[d] = f->half ? widened(narrowed(initial(f, keys[i], d))) : initial(f, keys[i], d);
        }
        if (!words || !clocks) continue;
        struct moving row = moving_of(kind, (float *)words + f->words - f->slots, f->slots, n);
        uint64_t part = (places[i] & ~ASLEEP) >> 32;
        struct gap gap = gap_of(kind, row.t[0], rates[part], h, factors, last, clocks[part]);
        move(out, &row, n, &gap);
    }
}

/* Optimizers: weights w, slots s, gradient g of n elements and its squares q (NULL: those of g); h in the order of
 * Optimizer.hyperparameters. */
static void sgd(float *restrict w, float *restrict s, const float *restrict g, int64_t n, float rate, const float *h) {
    if (h[0] == 0) EACH w[d] = w[d] - rate * g[d];
    else EACH {
        s[d] = h[0] * s[d] - rate * g[d];
        w[d] = h[1] != 0 ? w[d] + (h[0] * s[d] - rate * g[d]) : w[d] + s[d];
    }
}

static void adagrad(float *restrict w, float *restrict s, const float *restrict g, const float *restrict q, int64_t n,
                    float rate, const float *h) {
    EACH s[d] = s[d] + SQUARE;
    EACH w[d] = w[d] - rate * g[d] / (sqrtf(s[d] + h[0]) + h[1]);
}

static void rowwise_adagrad(float *restrict w, float *restrict s, const float *restrict g, int64_t n, float rate,
                            const float *h) {
    double sum = 0;
    EACH sum += (double)g[d] * (double)g[d];
    s[0] = s[0] + (float)(sum / (double)n);
    float root = sqrtf(s[0] + h[0]) + h[1];
    EACH w[d] = w[d] - rate * g[d] / root;
}

static void adam(float *restrict w, float *restrict m, float *restrict v, const float *restrict g,
                 const float *restrict q, int64_t n, float rate, const float *h, float correction, float epsilon) {
    float step = rate * correction, shrink = rate * h[4];
    EACH {
        m[d] = h[0] * m[d] + h[1] * g[d];
        v[d] = h[2] * v[d] + h[3] * SQUARE;
        w[d] = (w[d] - shrink * w[d]) - step * m[d] / (sqrtf(v[d]) + epsilon);
    }
}

static void rmsprop(float *restrict w, float *restrict m, float *restrict v, const float *restrict g,
                    const float *restrict q, int64_t n, float rate, const float *h) {
    EACH {
        v[d] = h[0] * v[d] + h[1] * SQUARE;
        float step = rate * g[d] / (sqrtf(v[d] + h[2]) + h[4]);
        if (m) m[d] = step = h[3] * m[d] + step;
        w[d] = w[d] - step;
    }
}

static void ftrl(float *restrict w, float *restrict s, const float *restrict g, const float *restrict q, int64_t n,
                 float rate, const float *h) {
    float *linear = s + n, l2 = h[1] + h[2] / (2 * rate);
    EACH {
        float root = sqrtf(s[d] + SQUARE);
        linear[d] = linear[d] + ((g[d] + h[3] * w[d]) - (root - sqrtf(s[d])) / rate * w[d]);
        s[d] = s[d] + SQUARE;
        float kept = linear[d] > h[0] ? h[0] : linear[d] < -h[0] ? -h[0] : linear[d];
        w[d] = (kept - linear[d]) / (root / rate + 2 * l2);
    }
}

/* One step of an optimizer on each row, whose part gives rate and clock. `wide` holds the weights of one row. */
void update(const struct part *parts, const struct format *f, int64_t kind, int64_t count, const uint64_t *places,
            const float *g, const float *squares, const float *rates, const float *clocks, const float *h,
            const float *factors, int64_t last, uint32_t epoch, float *wide) {
    int64_t n = f->width;
    for (int64_t i = 0; i < count; i++, g += n) {
        const float *q = squares ? squares + i * n : NULL;
        if (i + AHEAD < count) {
            const uint32_t *ahead = row_of(parts, f, places[i + AHEAD]);
            for (int64_t d = 0; d < f->words && d < 8 * LINE_WORDS; d += LINE_WORDS) PREFETCH(ahead + d);
        }
        const struct part *p = parts + (places[i] >> 32);
        uint32_t *words = row_of(parts, f, places[i]);
        float *w = f->half ? wide : (float *)words, *s = (float *)(words + f->words - f->slots);
        float rate = rates[places[i] >> 32], clock = clocks[places[i] >> 32];
        struct moving row = {NULL, NULL, NULL};
        int64_t step = 0;
        if (f->half) EACH wide[d] = widened(((uint16_t *)words)[d]);
        if (f->slots && (kind == SGD || kind == ADAM || kind == RMSPROP)) {
            row = moving_of(kind, s, f->slots, n);
            struct gap gap = gap_of(kind, row.t[0], rate, h, factors, last, clock);
            step = catch_up(w, &row, n, &gap, factors, last);
            if (step > last) step = last;
        }
        if (kind == SGD) sgd(w, row.m, g, n, rate, h);
        else if (kind == ADAGRAD) adagrad(w, s, g, q, n, rate, h);
        else if (kind == ROWWISE_ADAGRAD) rowwise_adagrad(w, s, g, n, rate, h);
        else if (kind == ADAM) adam(w, row.m, row.v, g, q, n, rate, h, factors[step], factors[last + 1 + step]);
        else if (kind == RMSPROP) rmsprop(w, row.m, row.v, g, q, n, rate, h);
        else ftrl(w, s, g, q, n, rate, h);
        if (f->half) EACH ((uint16_t *)words)[d] = narrowed(wide[d]);
        struct entry *entry = p->entries + (places[i] & UINT32_MAX);
        entry->epoch = epoch;
        if (p->owners && entry->mark >> HEAT < HEAT_MAX) entry->mark += UINT32_C(1) << HEAT;
    }
}

/* Reads the marks of rows. */
void marks(const struct part *parts, int64_t count, const uint64_t *places, uint32_t *out) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t place = places[i] & ~ASLEEP;
        out[i] = parts[place >> 32].entries[place & UINT32_MAX].mark;
    }
}

/* Makes hot rows as hot as can be: the hand passes them some times before it chooses them. */
void heat(struct part *parts, int64_t count, const uint64_t *places) {
    for (int64_t i = 0; i < count; i++) {
        struct part *p = parts + (places[i] >> 32);
        if (p->owners) p->entries[places[i] & UINT32_MAX].mark |= (uint32_t)HEAT_MAX << HEAT;
    }
}

/* Heats the hot rows among these that have no heat, so that the hand passes them once before they are taken. Many threads
 * may do so at once, and all set the same bit. */
void keep(const struct part *parts, int64_t count, const uint64_t *places) {
    for (int64_t i = 0; i < count; i++) {
        if (places[i] >= ASLEEP) continue;
        const struct part *p = parts + (places[i] >> 32);
        if (!p->owners) continue;
        struct entry *entry = p->entries + (places[i] & UINT32_MAX);
        if (!(entry->mark >> HEAT)) __atomic_fetch_or(&entry->mark, UINT32_C(1) << HEAT, __ATOMIC_RELAXED);
    }
}

/* Copies the words of hot and warm rows; what is to have those of absent ones is left as it is. */
void collect(const struct part *parts, const struct format *f, int64_t count, const uint64_t *places, uint32_t *out) {
    for (int64_t i = 0; i < count; i++, out += f->words) {
        if (i + AHEAD < count && places[i + AHEAD] < ASLEEP) PREFETCH(row_of(parts, f, places[i + AHEAD]));
        if (places[i] == ABSENT) continue;
        if (places[i] < ASLEEP) memcpy(out, row_of(parts, f, places[i]), 4 * (size_t)f->words);
        else unpack(f, warm_row_of(parts, f, places[i]), out);
    }
}

/* Writes the words of rows; a cold one becomes hot. All are heated: a hot one may have been chosen, and changes. */
void install(struct part *parts, const struct format *f, int64_t count, const uint64_t *places, const uint32_t *words) {
    for (int64_t i = 0; i < count; i++, words += f->words) {
        uint64_t place = places[i] & ~ASLEEP;
        struct part *p = parts + (place >> 32);
        struct entry *entry = p->entries + (place & UINT32_MAX);
        if (entry->mark >> COLD) settle(p, place & UINT32_MAX);
        if (p->owners) entry->mark |= UINT32_C(1) << HEAT;
        memcpy(row_of(parts, f, place), words, 4 * (size_t)f->words);
    }
}

/* Chooses hot rows of a part that nobody has changed lately: the hand goes down through the entries, `steps` of them at
 * most, and cools each row that it passes by one. Where `deeper`, it chooses the warm rows that it passes, too: they were
 * passed hot. Returns how many it chose; `hand` is the row that it looked at last. */
int64_t choose(struct part *p, int64_t wanted, int64_t steps, int64_t *hand, uint64_t part, uint64_t *places,
               int64_t deeper) {
    int64_t found = 0, at = *hand;
    for (; steps > 0 && found < wanted; steps--) {
        at = at > 0 && at <= (int64_t)p->size ? at - 1 : (int64_t)p->size - 1;
        struct entry *entry = p->entries + at;
        uint32_t heat = entry->mark >> HEAT;
        if (!heat) places[found++] = part << 32 | (uint64_t)at;
        else if (heat <= HEAT_MAX) entry->mark -= UINT32_C(1) << HEAT;
        else if (heat == WARM && deeper) places[found++] = ASLEEP | part << 32 | (uint64_t)at;
    }
    *hand = at;
    return found;
}

/* Takes the slot of a hot row; the last hot row of the part comes into it. */
static void leave_hot(struct part *p, const struct format *f, uint32_t slot) {
    uint32_t last = (uint32_t)--p->hot, row = p->owners[last];
    if (slot == last) return;
    memcpy(p->rows + slot * (uint64_t)f->words, p->rows + last * (uint64_t)f->words, 4 * (size_t)f->words);
    p->owners[slot] = row;
    p->entries[row].mark = (p->entries[row].mark & ~NUMBER) | slot;
}

/* The same for a warm row. */
static void leave_warm(struct part *p, const struct format *f, uint32_t slot) {
    uint32_t last = (uint32_t)--p->warm, row = p->warm_owners[last];
    size_t bytes = (size_t)warm_bytes(f);
    if (slot == last) return;
    memcpy(p->warm_rows + slot * bytes, p->warm_rows + last * bytes, bytes);
    p->warm_owners[slot] = row;
    p->entries[row].mark = (p->entries[row].mark & ~NUMBER) | slot;
}

/* Makes rows cold whose records are written, if they are as they were chosen: warm, or hot and with no heat since.
 * record: of each row; becomes UINT64_MAX where the row stayed. */
void release(struct part *parts, const struct format *f, int64_t count, const uint64_t *places, uint64_t *records) {
    for (int64_t i = 0; i < count; i++) {
        struct part *p = parts + ((places[i] & ~ASLEEP) >> 32);
        struct entry *entry = p->entries + (places[i] & UINT32_MAX);
        uint32_t heat = entry->mark >> HEAT;
        if (heat && heat != WARM) { records[i] = UINT64_MAX; continue; }
        if (heat) leave_warm(p, f, entry->mark & NUMBER);
        else leave_hot(p, f, entry->mark);
        entry->mark = UINT32_C(1) << COLD | (uint32_t)records[i];
    }
}

/* Makes hot rows without heat warm: rounds them, which changes them in `epoch` if it does. Returns how many found room. */
int64_t doze(struct part *parts, const struct format *f, int64_t count, const uint64_t *places, uint32_t epoch) {
    int64_t dozed = 0;
    for (int64_t i = 0; i < count; i++) {
        struct part *p = parts + (places[i] >> 32);
        uint32_t row = (uint32_t)places[i];
        struct entry *entry = p->entries + row;
        if (p->warm >= p->warm_slots) continue;
        if (i + AHEAD < count) PREFETCH(row_of(parts, f, places[i + AHEAD]));
        uint32_t *words = p->rows + entry->mark * (uint64_t)f->words;
        if (pack(f, words, p->warm_rows + p->warm * (uint64_t)warm_bytes(f)))
            entry->epoch = epoch + entry->epoch % STAMPS;
        leave_hot(p, f, entry->mark);
        p->warm_owners[p->warm] = row;
        entry->mark = (uint32_t)WARM << HEAT | (uint32_t)p->warm++;
        dozed++;
    }
    return dozed;
}

/* Makes warm rows hot, and names them so in their places. There is room. */
void rouse(struct part *parts, const struct format *f, int64_t count, uint64_t *places) {
    for (int64_t i = 0; i < count; i++) {
        if (places[i] < ASLEEP || places[i] == ABSENT) continue;
        if (i + AHEAD < count && places[i + AHEAD] >= ASLEEP && places[i + AHEAD] != ABSENT)
            PREFETCH(warm_row_of(parts, f, places[i + AHEAD]));
        const char *from = warm_row_of(parts, f, places[i]);
        places[i] &= ~ASLEEP;
        struct part *p = parts + (places[i] >> 32);
        uint32_t slot = p->entries[places[i] & UINT32_MAX].mark & NUMBER;
        settle(p, places[i] & UINT32_MAX);
        unpack(f, from, row_of(parts, f, places[i]));
        leave_warm(p, f, slot);
    }
}

static uint32_t checksum_of(uint64_t key, const uint32_t *words, int64_t n) {
    uint64_t sum = 0;
    EACH sum += words[d] * (((uint64_t)d + 1) * MULTIPLIER | 1);
    return (uint32_t)(mixed(sum ^ key * MULTIPLIER) >> 32);
}

/* Writes records (key, words, checksum) of rows, `per_page` of them in a page. */
void seal(int64_t n, int64_t count, const uint64_t *keys, const uint32_t *words, int64_t per_page, int64_t page_bytes,
          char *out) {
    size_t record_bytes = 12 + 4 * (size_t)n;
    for (int64_t i = 0; i < count; i++, words += n) {
        char *to = out + i / per_page * page_bytes + i % per_page * (int64_t)record_bytes;
        uint32_t checksum = checksum_of(keys[i], words, n);
        memcpy(to, keys + i, 8);
        memcpy(to + 8, words, 4 * (size_t)n);
        memcpy(to + 8 + 4 * n, &checksum, 4);
    }
}

/* Copies the words out of records; returns how many are those of the keys, up to the first that is damaged. */
int64_t unseal(int64_t n, int64_t count, const uint64_t *keys, const char *records, uint32_t *words) {
    size_t record_bytes = 12 + 4 * (size_t)n;
    for (int64_t i = 0; i < count; i++, words += n, records += record_bytes) {
        uint32_t checksum;
        memcpy(words, records + 8, 4 * (size_t)n);
        memcpy(&checksum, records + 8 + 4 * n, 4);
        if (memcmp(records, keys + i, 8) || checksum != checksum_of(keys[i], words, n)) return i;
    }
    return count;
}

/* Reads records from a file: all are asked for first, so that the disk has many to do at once. Returns how many came. */
int64_t fetch(int file, int64_t count, const int64_t *offsets, int64_t record_bytes, char *out) {
#ifdef POSIX_FADV_WILLNEED
    for (int64_t i = 0; i < count; i++) posix_fadvise(file, offsets[i], record_bytes, POSIX_FADV_WILLNEED);
#endif
    for (int64_t i = 0; i < count; i++)
        for (int64_t got = 0; got < record_bytes;) {
            ssize_t more = pread(file, out + i * record_bytes + got, (size_t)(record_bytes - got), offsets[i] + got);
            if (more < 0 && errno == EINTR) continue;
            if (more <= 0) return i;
            got += more;
        }
    return count;
}

#if defined(__linux__) && defined(SYS_io_setup)
/* Returns a queue of reads, 0 if the system gives none. The system's own AIO: container runtimes refuse io_uring. */
uint64_t open_queue(void) {
    aio_context_t queue = 0;
    return syscall(SYS_io_setup, QUEUED, &queue) ? 0 : queue;
}

void close_queue(uint64_t queue) { syscall(SYS_io_destroy, (aio_context_t)queue); }

/* What a queue reads: QUEUED slots, each with a page and the records first..end - 1 that lie in it. */
struct reading {
    aio_context_t queue;
    struct iocb asked[QUEUED];
    int64_t first[QUEUED], end[QUEUED];
    int64_t unused[QUEUED], unused_count, busy, failed;
};

/* Asks for the pages of records from `sent` on, as many as there are slots; returns the first record not asked for. */
static int64_t ask(struct reading *r, int file, int64_t count, const int64_t *offsets, int64_t page_bytes, char *pages,
                   int64_t sent) {
    struct iocb *next[QUEUED];
    long asked = 0, taken;
    while (r->unused_count && sent < count) {
        int64_t slot = r->unused[--r->unused_count], page = offsets[sent] / page_bytes * page_bytes;
        r->first[slot] = sent;
        while (sent < count && offsets[sent] < page + page_bytes) sent++;
        r->end[slot] = sent;
        struct iocb *one = next[asked++] = r->asked + slot;
        memset(one, 0, sizeof *one);
        one->aio_data = (uint64_t)slot;
        one->aio_lio_opcode = IOCB_CMD_PREAD;
        one->aio_fildes = (uint32_t)file;
        one->aio_buf = (uint64_t)(uintptr_t)(pages + slot * page_bytes);
        one->aio_nbytes = (uint64_t)page_bytes;
        one->aio_offset = page;
    }
    if (!asked) return sent;
    taken = syscall(SYS_io_submit, r->queue, asked, next);
    if (taken < 0 && errno != EINTR && !(errno == EAGAIN && r->busy)) r->failed = r->first[next[0]->aio_data];
    if (taken < 0) taken = 0;
    r->busy += taken;
    if (taken < asked) sent = r->first[next[taken]->aio_data];
    while (asked > taken) r->unused[r->unused_count++] = (int64_t)next[--asked]->aio_data;
    return sent;
}

/* Waits for at least `least` pages, and copies their records out. */
static void take(struct reading *r, int64_t least, const int64_t *offsets, int64_t record_bytes, int64_t page_bytes,
                 const char *pages, char *out) {
    struct io_event came[QUEUED];
    long count = syscall(SYS_io_getevents, r->queue, (long)least, (long)QUEUED, came, NULL);
    if (count < 0 && errno != EINTR) { /* never of a queue that is open; it ends its reads before their memory goes */
        close_queue(r->queue);
        r->busy = r->failed = 0;
    }
    for (long i = 0; i < count; i++) {
        int64_t slot = (int64_t)came[i].data, first = r->first[slot];
        r->unused[r->unused_count++] = slot;
        r->busy--;
        if (came[i].res != page_bytes) {
            if (first < r->failed) r->failed = first;
            continue;
        }
        for (int64_t j = first; j < r->end[slot]; j++)
            memcpy(out + j * record_bytes, pages + slot * page_bytes + offsets[j] % page_bytes, (size_t)record_bytes);
    }
}

/* Reads records of ascending offsets, none across two pages, from a file that passes the cache. `pages`: memory of QUEUED
 * pages, aligned like them. Returns how many came, up to the first that did not. */
int64_t fetch_past(uint64_t queue, int file, int64_t count, const int64_t *offsets, int64_t record_bytes,
                   int64_t page_bytes, char *pages, char *out) {
    struct reading r;
    int64_t sent = 0;
    r.queue = queue;
    r.failed = count;
    r.busy = 0;
    for (r.unused_count = 0; r.unused_count < QUEUED; r.unused_count++) r.unused[r.unused_count] = r.unused_count;
    while (r.busy || (sent < count && r.failed == count)) {
        if (r.failed == count) sent = ask(&r, file, count, offsets, page_bytes, pages, sent);
        int64_t least = sent < count && r.busy > QUEUED / 4 ? QUEUED / 4 : r.busy;
        if (least) take(&r, least, offsets, record_bytes, page_bytes, pages, out);
    }
    return r.failed;
}
#else
uint64_t open_queue(void) { return 0; }
void close_queue(uint64_t queue) { (void)queue; }
int64_t fetch_past(uint64_t queue, int file, int64_t count, const int64_t *offsets, int64_t record_bytes,
                   int64_t page_bytes, char *pages, char *out) {
    (void)queue; (void)file; (void)count; (void)offsets; (void)record_bytes; (void)page_bytes; (void)pages; (void)out;
    return 0;
}
#endif

#ifdef __SSE2__
/* Copies a line of 64 bytes past the caches, which it exceeds: what is overwritten is not read. Adds its w x to sums. */
static void copy_line(char *to, const char *from, const uint64_t *weights, uint64_t sums[2]) {
    PREFETCH(from + AHEAD_BYTES);
    for (int j = 0; j < 8; j += 2) {
        uint64_t pair[2];
        memcpy(pair, from + 8 * j, 16);
        _mm_stream_si128((__m128i *)(to + 8 * j), _mm_loadu_si128((const __m128i *)(from + 8 * j)));
        sums[0] += weights[j] * pair[0];
        sums[1] += weights[j + 1] * pair[1];
    }
}
#endif

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) /* zig does not link what asks for the processor */
#define WIDE __builtin_cpu_supports("avx512dq")
/* Does what copy_line does, for all lines of a piece, in a quarter less time; returns the sum. */
__attribute__((target("avx512f,avx512dq")))
static uint64_t copy_wide_lines(char *to, const char *from, int64_t words, const uint64_t *weights) {
    __m512i sums = _mm512_setzero_si512();
    for (int64_t i = 0; i + 8 <= words; i += 8) {
        PREFETCH(from + 8 * i + AHEAD_BYTES);
        __m512i line = _mm512_loadu_si512(from + 8 * i);
        _mm512_stream_si512((__m512i *)(to + 8 * i), line);
        sums = _mm512_add_epi64(sums, _mm512_mullo_epi64(line, _mm512_loadu_si512(weights + i)));
    }
    uint64_t each[8], sum = 0;
    _mm512_storeu_si512(each, sums);
    for (int j = 0; j < 8; j++) sum += each[j];
    return sum;
}
#else
#define WIDE 0
#define copy_wide_lines(to, from, words, weights) 0
#endif

/* Copies the words of a piece; returns the sum of w x. */
static uint64_t copy_words(char *to, const char *from, int64_t words, const uint64_t *weights) {
    uint64_t sums[2] = {0, 0}, word;
    int64_t i = 0;
#ifdef __SSE2__
    if ((uintptr_t)to % 64 == 0 && WIDE) {
        sums[0] = copy_wide_lines(to, from, words, weights);
        i = words / 8 * 8;
    }
    if ((uintptr_t)to % 16 == 0) for (; i + 8 <= words; i += 8) copy_line(to + 8 * i, from + 8 * i, weights + i, sums);
    _mm_sfence();
#endif
    for (; i < words; i++) {
        memcpy(&word, from + 8 * i, 8);
        memcpy(to + 8 * i, &word, 8);
        sums[0] += weights[i] * word;
    }
    return sums[0] + sums[1];
}

/* Copies bytes and returns their multilinear checksum (checksums.py): h = h m + sum of w x over pieces. */
uint64_t copy(void *to, const void *from, int64_t bytes, const uint64_t *weights, int64_t piece_bytes) {
    uint64_t hash = 0;
    for (int64_t begin = 0; begin < bytes; begin += piece_bytes) {
        const char *piece = (const char *)from + begin;
        int64_t length = bytes - begin < piece_bytes ? bytes - begin : piece_bytes, words = length / 8;
        uint64_t sum = copy_words((char *)to + begin, piece, words, weights), word = 0;
        if (length % 8) {
            memcpy(&word, piece + 8 * words, (size_t)(length % 8));
            memcpy((char *)to + begin + 8 * words, piece + 8 * words, (size_t)(length % 8));
            sum += weights[words] * word;
        }
        hash = hash * MULTIPLIER + sum;
    }
    return hash * MULTIPLIER + (uint64_t)bytes;
}
