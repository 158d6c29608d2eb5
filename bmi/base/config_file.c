/* SPDX-License-Identifier: BSD-3-Clause
 *
 * config_file.c - reads a configuration file, and splits it into assignments. See config_file.h.
 */
#include "bmi/base/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bmi/base/text.h"

/* Reads until the end, or until `most` bytes. Returns how many, or an errno. */
static ssize_t read_whole(int fd, char *text, size_t most)
{
    size_t have = 0;
    while (have < most) {
        ssize_t got = read(fd, text + have, most - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        have += (size_t)got;
    }
    return (ssize_t)have;
}

static int read_regular(int fd, char *text, size_t *size, const char **reason)
{
    struct stat status;
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode)) {
        *reason = "it is no regular file";
        return -EINVAL;
    }
    ssize_t got = read_whole(fd, text, BMI__CONFIG_BYTES + 1);
    if (got < 0) {
        *reason = strerror((int)-got);
        return (int)got;
    }
    if (got > BMI__CONFIG_BYTES) {
        *reason = "it has more than 65536 bytes";
        return -EINVAL;
    }
    *size = (size_t)got;
    return 0;
}

int bmi__config_read(const char *path, char **text, size_t *size, const char **reason)
{
    /* O_NONBLOCK: without it, the open of a FIFO waits for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        int error = errno;
        *reason = strerror(error);
        return -error;
    }
    int status = -ENOMEM;
    *reason = "no memory";
    *text = malloc(BMI__CONFIG_BYTES + 1);
    if (*text != NULL)
        status = read_regular(fd, *text, size, reason);
    if (status < 0) {
        free(*text);
        *text = NULL;
    }
    close(fd);
    return status;
}

static void comment_cut(char *line)
{
    for (char *c = line; *c != '\0'; c++)
        if (*c == '#' && (c == line || strchr(" \t\r\v\f", c[-1]) != NULL)) {
            *c = '\0';
            return;
        }
}

/* Takes the next line out of the text. Returns NULL if it has a byte 0. */
static char *line_take(struct bmi__config_cursor *cursor)
{
    char *line = cursor->at;
    char *newline = memchr(line, '\n', (size_t)(cursor->end - line));
    char *stop = newline != NULL ? newline : cursor->end;
    cursor->at = newline != NULL ? newline + 1 : cursor->end;
    cursor->line++;
    if (memchr(line, '\0', (size_t)(stop - line)) != NULL)
        return NULL;
    *stop = '\0';
    return line;
}

int bmi__config_next(struct bmi__config_cursor *cursor)
{
    while (cursor->at < cursor->end) {
        char *line = line_take(cursor);
        if (line == NULL) {
            cursor->reason = "a byte 0: this is no text";
            return -EINVAL;
        }
        comment_cut(line);
        line = bmi__trimmed(line);
        if (*line == '\0')
            continue;
        char *equals = strchr(line, '=');
        if (equals == NULL || equals == line) {
            cursor->reason = equals == NULL ? "no value; \"name = value\" is wanted"
                                            : "no name; \"name = value\" is wanted";
            return -EINVAL;
        }
        *equals = '\0';
        cursor->name = bmi__trimmed(line);
        cursor->value = bmi__trimmed(equals + 1);
        return 1;
    }
    return 0;
}
