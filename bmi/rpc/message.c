/* SPDX-License-Identifier: BSD-3-Clause
 *
 * message.c - packs and unpacks messages. No I/O, no state, no lock: it is fuzzed.
 *
 * An unpacker trusts nothing in the stream: each piece must be the one that the program asks for,
 * and must lie within what arrived. After the first mismatch nothing is unpacked any more.
 */
#include "bmi/rpc/message.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

/* A description: size in the lower 56 bits, then kind, then the width of an array's numbers. */
enum { KIND_SHIFT = 56, WIDTH_SHIFT = 60, DESCRIPTION = 8 };
enum piece_kind { PIECE_EXPRESS = 1, PIECE_CHEAPER = 2, PIECE_STRING = 3 };
#define SIZE_MOST ((UINT64_C(1) << KIND_SHIFT) - 1)

struct copy {
    struct copy *next;
    uint64_t bytes[];
};

struct later {
    struct later *next;
    const void *memory;
    size_t at, size;
};

static size_t padded(size_t size)
{
    return (size + 7) & ~(size_t)7;
}

/* ---- life ------------------------------------------------------------------------------------ */

void bmi__message_init(struct bmi_message *message)
{
    message->stream = (uint8_t *)message->inline_stream;
    message->stream_size = 0;
    message->stream_room = sizeof message->inline_stream;
    message->buffers = message->inline_buffers;
    message->sizes = message->inline_sizes;
    message->count = MESSAGE_BODY;
    message->room = MESSAGE_LIST_INLINE;
    message->body = message->body_size = 0;
    message->copies = NULL;
    message->later = NULL;
    message->error = 0;
    message->unpacking = message->placing = false;
    message->cursor = message->end = message->whole = NULL;
}

void bmi__message_clear(struct bmi_message *message)
{
    for (struct copy *copy = message->copies, *next; copy != NULL; copy = next) {
        next = copy->next;
        free(copy);
    }
    for (struct later *later = message->later, *next; later != NULL; later = next) {
        next = later->next;
        free(later);
    }
    if (message->stream_room > sizeof message->inline_stream)
        free(message->stream);
    if (message->buffers != message->inline_buffers) {
        free(message->buffers);
        free(message->sizes);
    }
    bmi__message_init(message);
}

struct bmi_message *bmi_message_new(void)
{
    struct bmi_message *message = malloc(sizeof *message);
    if (message != NULL)
        bmi__message_init(message);
    return message;
}

void bmi_message_free(struct bmi_message *message)
{
    if (message == NULL)
        return;
    bmi__message_clear(message);
    free(message);
}

static int fail(struct bmi_message *message, int error)
{
    if (message->error == 0)
        message->error = error;
    return error;
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Room for so many more bytes of the stream. */
static int stream_grow(struct bmi_message *message, size_t more)
{
    size_t need = message->stream_size + more, room = message->stream_room;
    if (more > RPC_EXPRESS_MAX || need > RPC_EXPRESS_MAX)
        return -BMI_EMSGSIZE;
    if (need <= room)
        return 0;
    while (room < need)
        room *= 2;
    bool own = message->stream != (uint8_t *)message->inline_stream;
    uint8_t *stream = realloc(own ? message->stream : NULL, room);
    if (stream == NULL)
        return -BMI_ENOMEM;
    if (!own)
        memcpy(stream, message->inline_stream, message->stream_size);
    message->stream = stream;
    message->stream_room = room;
    return 0;
}

static void describe(struct bmi_message *message, uint64_t size, enum piece_kind kind,
                     unsigned width)
{
    uint64_t description =
        htole64(size | (uint64_t)kind << KIND_SHIFT | (uint64_t)width << WIDTH_SHIFT);
    memcpy(message->stream + message->stream_size, &description, DESCRIPTION);
    message->stream_size += DESCRIPTION;
}

/* Describes an express piece and returns where its bytes go, zero behind them; NULL: an error. */
static uint8_t *express_begin(struct bmi_message *message, size_t size, enum piece_kind kind,
                              unsigned width)
{
    size_t room = size <= RPC_EXPRESS_MAX ? padded(size) : size;
    int status = room > RPC_EXPRESS_MAX ? -BMI_EMSGSIZE : stream_grow(message, DESCRIPTION + room);
    if (status < 0) {
        fail(message, status);
        return NULL;
    }
    describe(message, size, kind, width);
    uint8_t *bytes = message->stream + message->stream_size;
    if (room > size)
        memset(bytes + room - 8, 0, 8);
    message->stream_size += room;
    return bytes;
}

static int later_add(struct bmi_message *message, const void *memory, size_t at, size_t size)
{
    struct later *later = malloc(sizeof *later);
    if (later == NULL)
        return fail(message, -BMI_ENOMEM);
    *later = (struct later){.next = message->later, .memory = memory, .at = at, .size = size};
    message->later = later;
    return 0;
}

static int express_pack(struct bmi_message *message, const void *memory, size_t size, bool later)
{
    uint8_t *bytes = express_begin(message, size, PIECE_EXPRESS, 0);
    if (bytes == NULL)
        return message->error;
    if (later)
        return later_add(message, memory, (size_t)(bytes - message->stream), size);
    if (size > 0)
        memcpy(bytes, memory, size);
    return 0;
}

/* One more place in the list. */
static int list_grow(struct bmi_message *message)
{
    if (message->count < message->room)
        return 0;
    if (message->count >= RPC_PIECES_MAX)
        return -BMI_EMSGSIZE;
    size_t room = (size_t)message->room * 2;
    bool own = message->buffers != message->inline_buffers;
    void **buffers = realloc(own ? message->buffers : NULL, room * sizeof *buffers);
    if (buffers == NULL)
        return -BMI_ENOMEM;
    bmi_size_t *sizes = realloc(own ? message->sizes : NULL, room * sizeof *sizes);
    if (!own) {
        memcpy(buffers, message->inline_buffers, sizeof message->inline_buffers);
        if (sizes == NULL) {
            free(buffers);
            return -BMI_ENOMEM;
        }
        memcpy(sizes, message->inline_sizes, sizeof message->inline_sizes);
    }
    message->buffers = buffers;
    if (sizes == NULL)
        return -BMI_ENOMEM;
    message->sizes = sizes;
    message->room = (uint32_t)room;
    return 0;
}

static int list_add(struct bmi_message *message, void *memory, bmi_size_t size)
{
    int status = list_grow(message);
    bmi_size_t body;
    if (status == 0 && (__builtin_add_overflow(message->body, size, &body) || body > INT64_MAX / 2))
        status = -BMI_EMSGSIZE;
    if (status < 0)
        return fail(message, status);
    message->buffers[message->count] = memory;
    message->sizes[message->count++] = size;
    message->body = body;
    return 0;
}

static int cheaper_pack(struct bmi_message *message, const void *memory, bmi_size_t size, bool copy)
{
    int status = stream_grow(message, DESCRIPTION);
    if (status < 0)
        return fail(message, status);
    if (copy && size > 0) {
        struct copy *own = malloc(sizeof *own + (size_t)size);
        if (own == NULL)
            return fail(message, -BMI_ENOMEM);
        memcpy(own->bytes, memory, (size_t)size);
        own->next = message->copies;
        message->copies = own;
        memory = own->bytes;
    }
    status = list_add(message, (void *)(uintptr_t)memory, size);
    if (status == 0)
        describe(message, (uint64_t)size, PIECE_CHEAPER, 0);
    return status;
}

int bmi_pack(struct bmi_message *message, const void *memory, bmi_size_t size, unsigned mode)
{
    unsigned sender = mode & (BMI_PACK_SAFER | BMI_PACK_LATER | BMI_PACK_CHEAPER);
    unsigned receiver = mode & (BMI_UNPACK_EXPRESS | BMI_UNPACK_CHEAPER);
    if (message == NULL || message->unpacking)
        return -BMI_EINVAL;
    if (mode != (sender | receiver) || (sender & (sender - 1)) != 0 || sender == 0 ||
        (receiver & (receiver - 1)) != 0 || receiver == 0 || size < 0 ||
        (memory == NULL && size > 0) || (uint64_t)size > SIZE_MOST)
        return fail(message, -BMI_EINVAL);
    if (receiver == BMI_UNPACK_EXPRESS)
        return express_pack(message, memory, (size_t)size, sender == BMI_PACK_LATER);
    return cheaper_pack(message, memory, size, sender == BMI_PACK_SAFER);
}

static bool width_valid(unsigned width)
{
    return width == 1 || width == 2 || width == 4 || width == 8;
}

/* Converts numbers between the machine's order and little endian, in place: does nothing on a
 * machine that has that order. */
static void numbers_convert(uint8_t *bytes, size_t size, unsigned width)
{
    if (htole16(1) == 1 || width == 1)
        return;
    for (size_t at = 0; at < size; at += width)
        for (unsigned i = 0; i < width / 2; i++) {
            uint8_t byte = bytes[at + i];
            bytes[at + i] = bytes[at + width - 1 - i];
            bytes[at + width - 1 - i] = byte;
        }
}

int bmi_pack_array(struct bmi_message *message, const void *array, size_t count, unsigned width)
{
    if (message == NULL || message->unpacking)
        return -BMI_EINVAL;
    if (!width_valid(width) || (array == NULL && count > 0))
        return fail(message, -BMI_EINVAL);
    if (count > RPC_EXPRESS_MAX)
        return fail(message, -BMI_EMSGSIZE);
    uint8_t *bytes = express_begin(message, count * width, PIECE_EXPRESS, width);
    if (bytes == NULL)
        return message->error;
    if (count > 0)
        memcpy(bytes, array, count * width);
    numbers_convert(bytes, count * width, width);
    return 0;
}

int bmi_pack_u32(struct bmi_message *message, uint32_t value)
{
    return bmi_pack_array(message, &value, 1, sizeof value);
}

int bmi_pack_u64(struct bmi_message *message, uint64_t value)
{
    return bmi_pack_array(message, &value, 1, sizeof value);
}

int bmi_pack_string(struct bmi_message *message, const char *string)
{
    if (message == NULL || message->unpacking)
        return -BMI_EINVAL;
    if (string == NULL)
        return fail(message, -BMI_EINVAL);
    size_t size = strlen(string) + 1;
    uint8_t *bytes = express_begin(message, size, PIECE_STRING, 0);
    if (bytes == NULL)
        return message->error;
    memcpy(bytes, string, size);
    return 0;
}

int bmi__message_close(struct bmi_message *message)
{
    if (message->unpacking)
        return -BMI_EINVAL;
    if (message->error != 0)
        return message->error;
    for (struct later *later = message->later; later != NULL; later = later->next)
        if (later->size > 0)
            memcpy(message->stream + later->at, later->memory, later->size);
    message->buffers[MESSAGE_STREAM] = message->stream;
    message->sizes[MESSAGE_STREAM] = (bmi_size_t)message->stream_size;
    return 0;
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static void stream_lend(struct bmi_message *message, const uint8_t *stream, size_t size)
{
    message->stream = (uint8_t *)(uintptr_t)stream;
    message->stream_size = size;
    message->stream_room = 0;
}

void bmi__message_open(struct bmi_message *message, const uint8_t *stream, size_t size,
                       const uint8_t *body, bmi_size_t body_size)
{
    message->unpacking = message->placing = true;
    stream_lend(message, stream, size);
    message->cursor = stream;
    message->end = stream + size;
    message->whole = body;
    message->body_size = body_size;
}

struct piece {
    uint64_t size;
    unsigned kind, width;
};

static struct piece description_read(const uint8_t *bytes)
{
    uint64_t description;
    memcpy(&description, bytes, DESCRIPTION);
    description = le64toh(description);
    return (struct piece){.size = description & SIZE_MOST,
                          .kind = (unsigned)(description >> KIND_SHIFT) & 15,
                          .width = (unsigned)(description >> WIDTH_SHIFT)};
}

/* Reads the next description, without taking the piece. Checks that an express piece lies within
 * the stream, a cheaper one within the body. */
static int piece_look(struct bmi_message *message, struct piece *piece)
{
    if (message == NULL || !message->unpacking)
        return -BMI_EINVAL;
    if (message->error != 0)
        return message->error;
    if (message->cursor == message->end)
        return -BMI_ENODATA;
    size_t left = (size_t)(message->end - message->cursor);
    if (left < DESCRIPTION)
        return fail(message, -BMI_EBADMSG);
    *piece = description_read(message->cursor);
    left -= DESCRIPTION;
    bool cheaper = piece->kind == PIECE_CHEAPER;
    if (cheaper ? piece->size > (uint64_t)(message->body_size - message->body)
                : piece->size > left || padded((size_t)piece->size) > left)
        return fail(message, -BMI_EBADMSG);
    return 0;
}

/* The next piece must be of this kind and width. Moves on to its bytes. */
static int piece_take(struct bmi_message *message, enum piece_kind kind, unsigned width,
                      struct piece *piece)
{
    int status = piece_look(message, piece);
    if (status == -BMI_ENODATA || (status == 0 && (piece->kind != kind || piece->width != width)))
        return fail(message, -BMI_EBADMSG);
    if (status == 0)
        message->cursor += DESCRIPTION;
    return status;
}

/* Takes an express piece, in place. */
static int express_take(struct bmi_message *message, enum piece_kind kind, unsigned width,
                        const uint8_t **bytes, size_t *size)
{
    struct piece piece = {0};
    int status = piece_take(message, kind, width, &piece);
    if (status < 0)
        return status;
    *bytes = message->cursor;
    *size = (size_t)piece.size;
    message->cursor += padded(*size);
    return 0;
}

int bmi_unpack_size(struct bmi_message *message, bmi_size_t *size)
{
    struct piece piece = {0};
    if (size == NULL)
        return -BMI_EINVAL;
    int status = piece_look(message, &piece);
    if (status == 0)
        *size = (bmi_size_t)piece.size;
    return status;
}

static int cheaper_unpack(struct bmi_message *message, void *memory, bmi_size_t size)
{
    struct piece piece = {0};
    if (!message->placing)
        return -BMI_EINVAL;
    const uint8_t *before = message->cursor;
    int status = piece_take(message, PIECE_CHEAPER, 0, &piece);
    if (status == 0 && piece.size != (uint64_t)size)
        status = fail(message, -BMI_EBADMSG);
    if (status < 0)
        return status;
    if (message->whole != NULL && size > 0)
        memcpy(memory, message->whole + message->body, (size_t)size);
    status = list_add(message, memory, size);
    if (status < 0)
        message->cursor = before;
    return status;
}

int bmi_unpack(struct bmi_message *message, void *memory, bmi_size_t size, unsigned mode)
{
    const uint8_t *bytes;
    size_t have;
    bool express = mode == BMI_UNPACK_EXPRESS;
    if (message == NULL || !message->unpacking || (!express && mode != BMI_UNPACK_CHEAPER) ||
        size < 0 || (memory == NULL && size > 0))
        return -BMI_EINVAL;
    if (!express)
        return cheaper_unpack(message, memory, size);
    int status = express_take(message, PIECE_EXPRESS, 0, &bytes, &have);
    if (status == 0 && have != (size_t)size)
        status = fail(message, -BMI_EBADMSG);
    if (status == 0 && size > 0)
        memcpy(memory, bytes, (size_t)size);
    return status;
}

int bmi_unpack_in_place(struct bmi_message *message, const void **memory, bmi_size_t *size)
{
    const uint8_t *bytes;
    size_t have;
    if (memory == NULL || size == NULL)
        return -BMI_EINVAL;
    int status = express_take(message, PIECE_EXPRESS, 0, &bytes, &have);
    if (status < 0)
        return status;
    *memory = bytes;
    *size = (bmi_size_t)have;
    return 0;
}

int bmi_unpack_string(struct bmi_message *message, const char **string)
{
    const uint8_t *bytes;
    size_t have;
    if (string == NULL)
        return -BMI_EINVAL;
    int status = express_take(message, PIECE_STRING, 0, &bytes, &have);
    if (status == 0 && (have == 0 || strnlen((const char *)bytes, have) != have - 1))
        status = fail(message, -BMI_EBADMSG);
    if (status == 0)
        *string = (const char *)bytes;
    return status;
}

int bmi_unpack_array(struct bmi_message *message, const void **array, size_t *count, unsigned width)
{
    const uint8_t *bytes;
    size_t have;
    if (array == NULL || count == NULL || !width_valid(width))
        return -BMI_EINVAL;
    int status = express_take(message, PIECE_EXPRESS, width, &bytes, &have);
    if (status == 0 && have % width != 0)
        status = fail(message, -BMI_EBADMSG);
    if (status < 0)
        return status;
    numbers_convert((uint8_t *)(uintptr_t)bytes, have, width); /* the library's memory */
    *array = bytes;
    *count = have / width;
    return 0;
}

/* Takes one number. */
static int number_unpack(struct bmi_message *message, void *value, unsigned width)
{
    const void *array;
    size_t count;
    if (value == NULL)
        return -BMI_EINVAL;
    int status = bmi_unpack_array(message, &array, &count, width);
    if (status == 0 && count != 1)
        status = fail(message, -BMI_EBADMSG);
    if (status == 0)
        memcpy(value, array, width);
    return status;
}

int bmi_unpack_u32(struct bmi_message *message, uint32_t *value)
{
    return number_unpack(message, value, sizeof *value);
}

int bmi_unpack_u64(struct bmi_message *message, uint64_t *value)
{
    return number_unpack(message, value, sizeof *value);
}

int bmi__message_placed(struct bmi_message *message)
{
    message->placing = false;
    if (message->error != 0)
        return message->error;
    return message->body == message->body_size ? 0 : fail(message, -BMI_EBADMSG);
}

/* ---- forwarding ------------------------------------------------------------------------------ */

static struct bmi_message *unless_failed(struct bmi_message *message)
{
    if (message->error == 0)
        return message;
    bmi_message_free(message);
    return NULL;
}

struct bmi_message *bmi__message_again(const struct bmi_message *from)
{
    struct bmi_message *message = bmi_message_new();
    if (message == NULL)
        return NULL;
    stream_lend(message, from->stream, from->stream_size);
    if (from->whole != NULL)
        list_add(message, (void *)(uintptr_t)from->whole, from->body_size);
    for (uint32_t i = MESSAGE_BODY; from->whole == NULL && i < from->count; i++)
        list_add(message, from->buffers[i], from->sizes[i]);
    return unless_failed(message);
}

void bmi__message_restore(struct bmi_message *from)
{
    if (htole16(1) == 1)
        return; /* numbers_convert changes nothing */
    for (uint8_t *at = from->stream; at < from->cursor;) {
        struct piece piece = description_read(at);
        size_t here = piece.kind == PIECE_CHEAPER ? 0 : (size_t)piece.size;
        at += DESCRIPTION;
        if (here > 0 && piece.width > 0)
            numbers_convert(at, here, piece.width);
        at += padded(here);
    }
}

/* Memory of the message for a body of another one, which is received, or copied, to there. */
static int body_take(struct bmi_message *message, struct bmi_message *from)
{
    size_t size = (size_t)from->body_size;
    struct copy *own = malloc(sizeof *own + size);
    if (own == NULL)
        return fail(message, -BMI_ENOMEM);
    own->next = message->copies;
    message->copies = own;
    if (from->whole != NULL)
        memcpy(own->bytes, from->whole, size);
    int status = list_add(from, own->bytes, from->body_size);
    return status < 0 ? fail(message, status) : list_add(message, own->bytes, from->body_size);
}

struct bmi_message *bmi__message_take(struct bmi_message *from)
{
    struct bmi_message *message = bmi_message_new();
    if (message == NULL)
        return NULL;
    if (stream_grow(message, from->stream_size) < 0)
        fail(message, -BMI_ENOMEM);
    else if (from->stream_size > 0)
        memcpy(message->stream, from->stream, from->stream_size);
    if (message->error == 0 && from->body_size > 0)
        body_take(message, from);
    message->stream_size = from->stream_size;
    from->cursor = from->end;
    return unless_failed(message);
}
