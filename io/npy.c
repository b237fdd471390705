/* SPDX-License-Identifier: MIT */
#include "io/npy.h"

#include "io/in_file.h"
#include "io/out_file.h"

#include <stdlib.h>
#include <string.h>

enum { PREAMBLE = 8, HEADER_MAX = 1 << 20, HEADER_ALIGN = 64 };

static const char MAGIC[6] = { '\x93', 'N', 'U', 'M', 'P', 'Y' };

/* The text of a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } */
typedef struct header {
    const char *name; /* of the file */
    io_error *error;
    const char *at, *end;

    char descr[16];
    bool has_descr, has_order, has_shape;
    bool fortran;
    int rank;
    int64_t shape[ARRAY_MAX_RANK];
} header;

/* ---------------------------------------------------------------- the dictionary */

static void skip_spaces(header *h)
{
    while (h->at < h->end && (*h->at == ' ' || *h->at == '\n' || *h->at == '\t' || *h->at == '\r'))
        h->at++;
}

static bool take(header *h, char c)
{
    skip_spaces(h);
    if (h->at == h->end || *h->at != c) return false;
    h->at++;
    return true;
}

static bool take_word(header *h, const char *word)
{
    skip_spaces(h);
    size_t length = strlen(word);
    if ((size_t)(h->end - h->at) < length || memcmp(h->at, word, length) != 0) return false;
    h->at += length;
    return true;
}

static int malformed(const header *h, const char *expected)
{
    return io_fail(h->error, EXIT_INPUT, "%s: the .npy header is malformed: expected %s", h->name, expected);
}

static int take_string(header *h, char *text, size_t room, const char *what)
{
    skip_spaces(h);
    char quote = h->at < h->end ? *h->at : '\0';
    if (quote != '\'' && quote != '"') return malformed(h, what);
    const char *begin = ++h->at;
    while (h->at < h->end && *h->at != quote)
        h->at++;
    size_t length = (size_t)(h->at - begin);
    if (h->at == h->end || length >= room || memchr(begin, '\0', length)) return malformed(h, what);
    memcpy(text, begin, length);
    text[length] = '\0';
    h->at++;
    return 0;
}

static int take_size(header *h, int64_t *size)
{
    skip_spaces(h);
    const char *begin = h->at;
    bool negative = h->at < h->end && *h->at == '-';
    h->at += negative;
    const char *digits = h->at;
    *size = 0;
    for (; h->at < h->end && *h->at >= '0' && *h->at <= '9'; h->at++)
        if (__builtin_mul_overflow(*size, (int64_t)10, size) ||
            __builtin_add_overflow(*size, (int64_t)(*h->at - '0'), size))
            return io_fail(h->error, EXIT_INPUT, "%s: a size of the shape overflows", h->name);
    if (h->at == digits) return malformed(h, "a whole number in the shape");
    if (negative)
        return io_fail(h->error, EXIT_INPUT, "%s: the shape has a negative size, %.*s", h->name,
                       (int)(h->at - begin < 24 ? h->at - begin : 24), begin);
    take(h, 'L'); /* written by Python 2 */
    return 0;
}

static int take_shape(header *h)
{
    if (!take(h, '(')) return malformed(h, "the shape, a tuple");
    while (!take(h, ')')) {
        if (h->rank == ARRAY_MAX_RANK)
            return io_fail(h->error, EXIT_INPUT, "%s: more than %d axes", h->name, ARRAY_MAX_RANK);
        int status = take_size(h, &h->shape[h->rank++]);
        if (status) return status;
        if (!take(h, ',')) {
            if (h->rank > 1 && take(h, ')')) break;
            return malformed(h, "',' after a size of the shape");
        }
    }
    return 0;
}

static int take_descr(header *h)
{
    if (take(h, '['))
        return io_fail(h->error, EXIT_INPUT, "%s: elements are records; expected float16, float32 or float64",
                       h->name);
    return take_string(h, h->descr, sizeof h->descr, "the element type, such as '<f4'");
}

static int take_order(header *h)
{
    h->fortran = take_word(h, "True");
    return h->fortran || take_word(h, "False") ? 0 : malformed(h, "True or False as 'fortran_order'");
}

static int take_entry(header *h)
{
    char key[16];
    int status = take_string(h, key, sizeof key, "'descr', 'fortran_order' or 'shape'");
    if (status) return status;
    if (!take(h, ':')) return malformed(h, "':' after a key");
    static const char *const keys[] = { "descr", "fortran_order", "shape" };
    static int (*const takers[])(header *) = { take_descr, take_order, take_shape };
    bool *seen[] = { &h->has_descr, &h->has_order, &h->has_shape };
    for (int i = 0; i < 3; i++)
        if (strcmp(key, keys[i]) == 0 && !*seen[i]) {
            *seen[i] = true;
            return takers[i](h);
        }
    return malformed(h, "'descr', 'fortran_order' and 'shape' once each");
}

static int parse_dictionary(header *h)
{
    if (!take(h, '{')) return malformed(h, "'{'");
    while (!take(h, '}')) {
        int status = take_entry(h);
        if (status) return status;
        if (!take(h, ',')) {
            if (take(h, '}')) break;
            return malformed(h, "',' or '}'");
        }
    }
    skip_spaces(h);
    if (h->at != h->end) return malformed(h, "nothing after '}'");
    if (!h->has_descr || !h->has_order || !h->has_shape)
        return malformed(h, "'descr', 'fortran_order' and 'shape'");
    return 0;
}

/* ---------------------------------------------------------------- reading */

/* Which of `types`, such as "f4", the elements are; *which is then its index. */
static int element_type(const header *h, const char *const *types, const char *expected, int *which)
{
    const char *type = h->descr;
    if (*type == '>')
        return io_fail(h->error, EXIT_INPUT, "%s: elements are big-endian ('%s'); expected %s", h->name, type,
                       expected);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (*type == '=')
        type++;
    else
#endif
        type += *type == '<';
    for (int i = 0; type != h->descr && types[i]; i++)
        if (strcmp(type, types[i]) == 0) {
            *which = i;
            return 0;
        }
    if (strchr(h->descr, 'O'))
        return io_fail(h->error, EXIT_INPUT, "%s: elements are Python objects; expected %s", h->name,
                       expected);
    return io_fail(h->error, EXIT_INPUT, "%s: elements are '%s'; expected %s", h->name, h->descr, expected);
}

/* The header must agree with the rest of the file to the byte. */
static int check_size(const header *h, size_t element, int64_t bytes)
{
    char text[ARRAY_TEXT];
    const int64_t size = (int64_t)element, count = array_shape_count(h->rank, h->shape, element);
    if (h->fortran)
        return io_fail(h->error, EXIT_INPUT,
                       "%s: the array is in Fortran order; save numpy.ascontiguousarray of it", h->name);
    if (count < 0)
        return io_fail(h->error, EXIT_INPUT, "%s: the size of shape %s overflows", h->name,
                       array_shape_text(text, h->rank, h->shape));
    if (count * size != bytes)
        return io_fail(
            h->error, EXIT_INPUT, "%s: shape %s of '%s' needs %lld bytes, but the file has %lld: %s", h->name,
            array_shape_text(text, h->rank, h->shape), h->descr, (long long)(count * size), (long long)bytes,
            bytes < count * size ? "it is truncated" : "there are bytes after the end");
    return 0;
}

static int read_elements(array *out, FILE *stream, const header *h, int64_t bytes)
{
    static const char *const types[] = { "f2", "f4", "f8", NULL };
    static const loam_dtype dtypes[] = { LOAM_F16, LOAM_F32, LOAM_F64 };
    int which = 0;
    int status = element_type(h, types, "'<f2', '<f4' or '<f8'", &which);
    if (!status) status = check_size(h, array_dtype_bytes(dtypes[which]), bytes);
    if (!status) status = array_create(out, dtypes[which], h->rank, h->shape, h->name, h->error);
    if (status) return status;
    status = in_read(stream, h->name, out->data, (size_t)bytes, h->error);
    if (status) array_free(out);
    return status;
}

static int read_integers(int64_t **out, int64_t *count, FILE *stream, const header *h, int64_t bytes)
{
    static const char *const types[] = { "i4", "i8", NULL };
    int which = 0;
    char text[ARRAY_TEXT];
    int status = element_type(h, types, "'<i4' or '<i8'", &which);
    if (!status) status = check_size(h, which ? 8 : 4, bytes);
    if (status) return status;
    if (h->rank != 1)
        return io_fail(h->error, EXIT_INPUT, "%s has shape %s: expected one axis", h->name,
                       array_shape_text(text, h->rank, h->shape));
    int64_t *values = malloc((size_t)h->shape[0] * sizeof *values + 1);
    if (!values) return io_fail(h->error, EXIT_INTERNAL, "out of memory for the numbers of %s", h->name);
    status = in_read(stream, h->name, values, (size_t)bytes, h->error);
    if (status) {
        free(values);
        return status;
    }
    /* From the last on, so that none is written over before it is read. */
    for (int64_t i = h->shape[0]; which == 0 && i-- > 0;) {
        int32_t narrow;
        memcpy(&narrow, (const char *)values + i * 4, sizeof narrow);
        values[i] = narrow;
    }
    *out = values, *count = h->shape[0];
    return 0;
}

/* Length of the dictionary; *preamble is where it begins. */
static int read_preamble(FILE *stream, const char *name, int64_t bytes, int64_t *preamble, int64_t *length,
                         io_error *error)
{
    unsigned char begin[12] = { 0 };
    int64_t enough = bytes < (int64_t)sizeof begin ? bytes : (int64_t)sizeof begin;
    int status = in_read(stream, name, begin, (size_t)enough, error);
    if (status) return status;
    if (bytes < (int64_t)sizeof MAGIC || memcmp(begin, MAGIC, sizeof MAGIC) != 0)
        return io_fail(error, EXIT_INPUT, "%s is not a .npy file", name);
    unsigned major = begin[6], minor = begin[7];
    if (bytes >= PREAMBLE && (major < 1 || major > 3 || minor != 0))
        return io_fail(error, EXIT_INPUT, "%s: .npy version %u.%u; expected 1.0, 2.0 or 3.0", name, major,
                       minor);
    *preamble = major == 1 ? PREAMBLE + 2 : PREAMBLE + 4;
    *length = begin[8] | begin[9] << 8;
    if (major > 1) *length |= (int64_t)begin[10] << 16 | (int64_t)begin[11] << 24;
    if (bytes < *preamble || *length > bytes - *preamble)
        return io_fail(error, EXIT_INPUT, "%s: the .npy header is truncated", name);
    if (*length > HEADER_MAX)
        return io_fail(error, EXIT_INPUT, "%s: the .npy header has %lld bytes; expected at most %d", name,
                       (long long)*length, HEADER_MAX);
    return fseek(stream, (long)*preamble, SEEK_SET)
               ? io_fail(error, EXIT_INPUT, "cannot read %s: it cannot be searched", name)
               : 0;
}

/* Everything up to the elements, of which there are so many bytes. */
static int read_header(FILE *stream, const char *name, header *h, int64_t *data_bytes, io_error *error)
{
    int64_t bytes = 0, preamble = 0, length = 0;
    int status = in_size(stream, name, &bytes, error);
    if (!status) status = read_preamble(stream, name, bytes, &preamble, &length, error);
    if (status) return status;
    char *text = malloc((size_t)length + 1);
    if (!text) return io_fail(error, EXIT_INTERNAL, "out of memory for the header of %s", name);
    *h = (header){ .name = name, .error = error, .at = text, .end = text + length };
    status = in_read(stream, name, text, (size_t)length, error);
    if (!status) status = parse_dictionary(h);
    h->at = h->end = NULL;
    free(text);
    *data_bytes = bytes - preamble - length;
    return status;
}

int npy_read_stream(array *out, FILE *stream, const char *name, io_error *error)
{
    header h;
    int64_t bytes = 0;
    *out = (array){ 0 };
    const int status = read_header(stream, name, &h, &bytes, error);
    return status ? status : read_elements(out, stream, &h, bytes);
}

int npy_read(array *out, const char *path, io_error *error)
{
    *out = (array){ 0 };
    FILE *stream = in_open(path, error);
    if (!stream) return EXIT_INPUT;
    int status = npy_read_stream(out, stream, path, error);
    fclose(stream);
    return status;
}

int npy_read_integers_stream(int64_t **out, int64_t *count, FILE *stream, const char *name, io_error *error)
{
    header h;
    int64_t bytes = 0;
    *out = NULL, *count = 0;
    const int status = read_header(stream, name, &h, &bytes, error);
    return status ? status : read_integers(out, count, stream, &h, bytes);
}

int npy_read_integers(int64_t **out, int64_t *count, const char *path, io_error *error)
{
    *out = NULL, *count = 0;
    FILE *stream = in_open(path, error);
    if (!stream) return EXIT_INPUT;
    const int status = npy_read_integers_stream(out, count, stream, path, error);
    fclose(stream);
    return status;
}

/* ---------------------------------------------------------------- writing */

static void write_widened(FILE *stream, const array *a)
{
    enum { PART = 1024 };
    float part[PART];
    for (int64_t begin = 0; begin < a->count; begin += PART) {
        int64_t count = a->count - begin < PART ? a->count - begin : PART;
        for (int64_t i = 0; i < count; i++)
            part[i] = (float)array_get(a, begin + i);
        fwrite(part, sizeof *part, (size_t)count, stream);
    }
}

void npy_write_stream(FILE *stream, const array *a)
{
    loam_dtype dtype = a->dtype == LOAM_BF16 ? LOAM_F32 : a->dtype;
    char shape[ARRAY_TEXT], text[3 * HEADER_ALIGN + ARRAY_TEXT];
    int length = snprintf(text, sizeof text, "{'descr': '<f%d', 'fortran_order': False, 'shape': %s, }",
                          (int)array_dtype_bytes(dtype), array_shape_text(shape, a->rank, a->shape));
    /* Elements begin at a multiple of 64, as NumPy has it; the header ends with a newline. */
    int used = PREAMBLE + 2 + length + 1;
    int padding = (HEADER_ALIGN - used % HEADER_ALIGN) % HEADER_ALIGN;
    int total = length + padding + 1;
    const unsigned char version_and_length[4] = { 1, 0, (unsigned char)(total & 255),
                                                  (unsigned char)(total >> 8) };
    fwrite(MAGIC, 1, sizeof MAGIC, stream);
    fwrite(version_and_length, 1, sizeof version_and_length, stream);
    fprintf(stream, "%s%*s\n", text, padding, "");
    if (a->dtype == LOAM_BF16)
        write_widened(stream, a);
    else if (a->count)
        fwrite(a->data, array_dtype_bytes(dtype), (size_t)a->count, stream);
}

int npy_write(const char *path, const array *a, io_error *error)
{
    out_file *file;
    int status = out_open(&file, path, error);
    if (status) return status;
    npy_write_stream(out_stream(file), a);
    return out_commit(file, error);
}
