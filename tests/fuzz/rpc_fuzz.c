/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rpc_fuzz.c - messages of RPC. The first byte chooses: an untrusted header with its stream and
 * body, unpacked by calls that the input names; or pieces that are packed, and unpacked by the same
 * calls or by others. Nothing outside of the message is read, a mismatch writes nothing, and no
 * wrong byte is delivered.
 */
#include <stdlib.h>
#include <string.h>

#include "bmi/rpc/head.h"
#include "bmi/rpc/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* The input, byte by byte; zeroes behind its end. */
struct input {
    const uint8_t *data;
    size_t left;
};

static unsigned take(struct input *input)
{
    if (input->left == 0)
        return 0;
    input->left--;
    return *input->data++;
}

enum { EXPRESS, IN_PLACE, CHEAPER, STRING, U32, U64, ARRAY, CALLS, PIECE_MOST = 300 };

/* ---- unpacking ------------------------------------------------------------------------------- */

static int unpack_memory(struct bmi_message *message, bmi_size_t size, unsigned mode)
{
    uint8_t *memory = malloc((size_t)size + 1);
    memset(memory, 0xa5, (size_t)size + 1);
    int status = bmi_unpack(message, memory, size, mode);
    require(memory[size] == 0xa5);
    for (bmi_size_t i = 0; status < 0 && i < size; i++)
        require(memory[i] == 0xa5);
    free(memory);
    return status;
}

/* Reads all of the bytes: a sanitizer checks that they are the message's. */
static unsigned touch(const void *memory, size_t size)
{
    unsigned sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += ((const uint8_t *)memory)[i];
    return sum;
}

static int unpack_one(struct bmi_message *message, struct input *input)
{
    const void *memory;
    const char *string;
    bmi_size_t size = 0;
    size_t count;
    uint32_t u32;
    uint64_t u64;
    unsigned width = 1u << take(input) % 5;
    unsigned call = take(input) % CALLS;
    int status = bmi_unpack_size(message, &size);
    if (size > PIECE_MOST || take(input) % 8 == 0)
        size = take(input);
    switch (status < 0 && status != -BMI_ENODATA ? CALLS : call) {
    case EXPRESS:
        return unpack_memory(message, size, BMI_UNPACK_EXPRESS);
    case CHEAPER:
        return unpack_memory(message, size, BMI_UNPACK_CHEAPER);
    case IN_PLACE:
        status = bmi_unpack_in_place(message, &memory, &size);
        (void)touch(memory, status == 0 ? (size_t)size : 0);
        return status;
    case STRING:
        status = bmi_unpack_string(message, &string);
        (void)touch(string, status == 0 ? strlen(string) + 1 : 0);
        return status;
    case U32:
        return bmi_unpack_u32(message, &u32);
    case U64:
        return bmi_unpack_u64(message, &u64);
    case ARRAY:
        status = bmi_unpack_array(message, &memory, &count, width);
        (void)touch(memory, status == 0 ? count * width : 0);
        return status;
    default:
        return status;
    }
}

static void try_message(struct input *input)
{
    struct rpc_head head;
    struct bmi_message message;
    size_t size = take(input) | (take(input) & 3) << 8;
    if (size > input->left)
        size = input->left;
    uint8_t *bytes = malloc(size); /* of that size, so that a sanitizer sees a byte beyond it */
    memcpy(bytes, input->data, size);
    int length = bmi__rpc_head_decode(bytes, size, &head);
    if (length >= 0) {
        bool apart = (head.flags & RPC_STREAM_APART) != 0;
        const uint8_t *stream = bytes + length;
        require((size_t)length <= size);
        bmi__message_init(&message);
        if (!apart) {
            bool body = !(head.flags & RPC_BODY_APART);
            bmi__message_open(&message, stream, (size_t)head.stream,
                              body ? stream + head.stream : NULL, (bmi_size_t)head.body);
            for (int i = 0; i < 64 && unpack_one(&message, input) == 0; i++)
                ;
            (void)bmi__message_placed(&message);
        }
        bmi__message_clear(&message);
    }
    free(bytes);
}

/* ---- packing and unpacking ------------------------------------------------------------------- */

struct piece {
    unsigned call, width;
    size_t size;
    uint8_t bytes[PIECE_MOST];
};

static void piece_pack(struct bmi_message *message, const struct piece *piece, unsigned sender)
{
    uint32_t u32;
    uint64_t u64;
    memcpy(&u32, piece->bytes, sizeof u32);
    memcpy(&u64, piece->bytes, sizeof u64);
    if (piece->call == STRING)
        bmi_pack_string(message, (const char *)piece->bytes);
    else if (piece->call == U32)
        bmi_pack_u32(message, u32);
    else if (piece->call == U64)
        bmi_pack_u64(message, u64);
    else if (piece->call == ARRAY)
        bmi_pack_array(message, piece->bytes, piece->size / piece->width, piece->width);
    else
        bmi_pack(message, piece->bytes, (bmi_size_t)piece->size,
                 sender | (piece->call == CHEAPER ? BMI_UNPACK_CHEAPER : BMI_UNPACK_EXPRESS));
}

static void piece_draw(struct piece *piece, struct input *input)
{
    *piece = (struct piece){.call = take(input) % CALLS, .width = 1u << take(input) % 4};
    piece->size = take(input);
    for (size_t i = 0; i < piece->size; i++)
        piece->bytes[i] = (uint8_t)(take(input) + i);
}

static bool bytes_equal(const struct piece *piece, const void *bytes, size_t size)
{
    return size == 0 || memcmp(piece->bytes, bytes, size) == 0;
}

/* Unpacks a piece as it was packed. `places`: where cheaper pieces were put. */
static void piece_unpack(struct bmi_message *message, const struct piece *piece, uint8_t *place)
{
    const void *memory;
    const char *string;
    bmi_size_t size;
    size_t count;
    uint32_t u32;
    uint64_t u64;
    switch (piece->call) {
    case CHEAPER:
        require(bmi_unpack(message, place, (bmi_size_t)piece->size, BMI_UNPACK_CHEAPER) == 0);
        require(bytes_equal(piece, place, piece->size));
        break;
    case EXPRESS:
        require(bmi_unpack(message, place, (bmi_size_t)piece->size, BMI_UNPACK_EXPRESS) == 0);
        require(bytes_equal(piece, place, piece->size));
        break;
    case STRING:
        require(bmi_unpack_string(message, &string) == 0);
        require(strcmp(string, (const char *)piece->bytes) == 0);
        break;
    case U32:
        require(bmi_unpack_u32(message, &u32) == 0 && bytes_equal(piece, &u32, sizeof u32));
        break;
    case U64:
        require(bmi_unpack_u64(message, &u64) == 0 && bytes_equal(piece, &u64, sizeof u64));
        break;
    case ARRAY:
        require(bmi_unpack_array(message, &memory, &count, piece->width) == 0);
        require(count == piece->size / piece->width);
        require(bytes_equal(piece, memory, count * piece->width));
        break;
    default:
        require(bmi_unpack_in_place(message, &memory, &size) == 0);
        require((size_t)size == piece->size && bytes_equal(piece, memory, piece->size));
    }
}

/* The bytes of the body, one after the other. */
static uint8_t *body_gather(const struct bmi_message *message)
{
    uint8_t *body = malloc((size_t)message->body + 1), *to = body;
    for (uint32_t i = MESSAGE_BODY; i < message->count; i++) {
        if (message->sizes[i] > 0)
            memcpy(to, message->buffers[i], (size_t)message->sizes[i]);
        to += message->sizes[i];
    }
    return body;
}

static void try_pieces(struct input *input)
{
    enum { PIECES = 12 };
    static struct piece pieces[PIECES];
    static const unsigned senders[] = {BMI_PACK_SAFER, BMI_PACK_LATER, BMI_PACK_CHEAPER};
    static uint8_t places[PIECES][PIECE_MOST];
    unsigned count = take(input) % (PIECES + 1);
    struct bmi_message *packed = bmi_message_new(), taken;
    for (unsigned i = 0; i < count; i++) {
        piece_draw(&pieces[i], input);
        piece_pack(packed, &pieces[i], senders[take(input) % 3]);
    }
    require(bmi__message_close(packed) == 0);
    uint8_t *stream = malloc(packed->stream_size + 1), *body = body_gather(packed);
    memcpy(stream, packed->stream, packed->stream_size);
    bmi__message_init(&taken);
    bmi__message_open(&taken, stream, packed->stream_size, body, packed->body);
    if (take(input) % 2 == 0) {
        for (unsigned i = 0; i < count; i++)
            piece_unpack(&taken, &pieces[i], places[i]);
        require(taken.cursor == taken.end && bmi__message_placed(&taken) == 0);
    } else {
        for (int i = 0; i < 64 && unpack_one(&taken, input) == 0; i++)
            ;
    }
    bmi__message_clear(&taken);
    bmi_message_free(packed);
    free(stream);
    free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {.data = data, .left = size};
    if (take(&input) % 2 == 0)
        try_message(&input);
    else
        try_pieces(&input);
    return 0;
}
