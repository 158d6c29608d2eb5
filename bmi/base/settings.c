/* SPDX-License-Identifier: BSD-3-Clause
 *
 * settings.c - the table of settings, its parser, and its readers. See settings.h.
 *
 * The table holds the core's settings, then those that the built-in methods declare. The methods'
 * part is filled once, before the first access by name or index (table_count).
 *
 * The value of a text is the address of a string that is kept until the process ends, the same one
 * for equal texts; 0 is the empty text. So it is set, lent and returned like a number.
 */
#include "bmi/base/settings.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bmi/base/config_file.h"
#include "bmi/base/instance.h"
#include "bmi/base/log.h"
#include "bmi/base/text.h"
#include "bmi/method.h"

extern const struct bmi_method *const bmi__methods[]; /* generated; ends with NULL */

enum { METHOD_SETTINGS = 64, TABLE_MOST = SETTINGS + METHOD_SETTINGS };

enum kind {
    NUMBER = BMI_SETTING_NUMBER,
    BYTES = BMI_SETTING_BYTES,
    SWITCH = BMI_SETTING_SWITCH,
    TEXT = BMI_SETTING_TEXT,
    LEVEL, /* the rest: the core's only */
    POLLER,
    POLICY
};

static const char *const levels[] = {"off", "error", "warn", "info", "debug", "trace", NULL};
static const char *const poller_words[] = {"caller", "background", NULL};
static const char *const policies[] = {"batch", "normal", "idle", NULL}; /* enum bmi_task_policy */

static struct {
    const char *name;
    enum kind kind;
    int64_t preset, least, most;
    const char *help;
} table[TABLE_MOST] = {
    [SETTING_IMMEDIATE] =
        {"immediate", SWITCH, 1, 0, 1,
         "let a post return 1 when it completed at once; off: every post is tested"},
    [SETTING_COALESCE] = {"coalesce", SWITCH, 1, 0, 1,
                          "gather small sends posted between two tests into one system call"},
    [SETTING_ANNOUNCE] =
        {"announce", SWITCH, 1, 0, 1,
         "announce large receives to their senders before they ask (no round trip)"},
    [SETTING_JOIN] = {"join", SWITCH, 1, 0, 1,
                      "one connection for two processes that dial each other; off: one for each "
                      "dialler, messages of both do not match each other's receives"},
    [SETTING_EAGER_MAX] =
        {"eager_max", BYTES, 0, 0, 1 << 20,
         "largest message sent unasked, at most a frame of the method; 0: its own"},
    [SETTING_UNEXPECTED_SIZE] =
        {"unexpected_size", BYTES, 16384, 1, INT32_MAX,
         "largest unexpected message reported to programs, if the peer takes it"},
    [SETTING_PEER_MEMORY] = {"peer_memory", BYTES, 1 << 20, 1 << 15, 1 << 30,
                             "memory for unmatched and unfetched messages of one peer"},
    [SETTING_TOTAL_MEMORY] = {"total_memory", BYTES, 1 << 28, 1 << 17, INT64_C(1) << 40,
                              "memory for unmatched and unfetched messages of all peers"},
    [SETTING_PEER_TIMEOUT] = {"peer_timeout_ms", NUMBER, 30000, 0, 86400000,
                              "a peer silent that long while we wait for it has failed; 0: never"},
    [SETTING_CONNECT_TIMEOUT] = {"connect_timeout_ms", NUMBER, 10000, 1, 86400000,
                                 "how long to try one address of a peer"},
    [SETTING_CANCEL_GRACE] =
        {"cancel_grace_ms", NUMBER, 1000, 0, 86400000,
         "how long a cancelled receive waits for the sender's word that it is unused"},
    [SETTING_LINGER] = {"linger_ms", NUMBER, 5000, 0, 86400000,
                        "how long BMI_finalize goes on writing messages reported as sent"},
    [SETTING_IDLE_REAP] =
        {"idle_reap_s", NUMBER, 0, 0, 86400000,
         "close a connection after so long without messages or pending operations; 0: never"},
    [SETTING_SPIN] = {"spin_us", NUMBER, 50, 0, 1000000,
                      "how long to poll before sleeping, up to 4 times that where it pays; 0: not"},
    [SETTING_PROGRESS] =
        {"progress", POLLER, 0, 0, 1,
         "caller: messages move in test calls; background: also while the program computes"},
    [SETTING_OFFLOAD] = {"offload", SWITCH, 0, 0, 1,
                         "with progress=background, the nearest idle core writes posted messages"},
    [SETTING_WORKER_POLICY] =
        {"worker_policy", POLICY, 0, 0, 2,
         "how task workers share busy CPUs: batch: a fair share; normal: the same, and they start "
         "at once; idle: only CPUs without other work, also for tasks that have begun"},
    [SETTING_DEAD_PEERS] = {"dead_peers", NUMBER, 4096, 0, 1 << 24,
                            "accepted peers that are gone and whose cause is still reported"},
    [SETTING_REGISTRATION_BYTES] = {"registration_bytes", BYTES, INT64_C(1) << 32, 1 << 16,
                                    INT64_C(1) << 46,
                                    "memory of the program registered with a network at a time"},
    [SETTING_REGISTRATION_COUNT] = {"registration_count", NUMBER, 4096, 16, 1 << 24,
                                    "registrations with a network at a time"},
    [SETTING_REGISTRATION_KEEP] =
        {"registration_keep", SWITCH, 0, 0, 1,
         "keep plain buffers registered; the program promises never to unmap them"},
    [SETTING_STATS] = {"stats", SWITCH, 0, 0, 1, "print statistics at the last finalize"},
    [SETTING_REPORT] = {"report", SWITCH, 0, 0, 1,
                        "answer bmi-info --process with a report of this process"},
    [SETTING_LOG] = {"log", LEVEL, 0, 0, 5, "what to print to standard error"},
    [SETTING_CONFIG_FILE] =
        {"config_file", TEXT, 0, 0, 0,
         "file of settings, \"name = value\" lines, for those that neither the environment nor the "
         "program sets"},
};

/* Where each value comes from. The last two are lent: bmi__settings_return restores the former one.
 */
enum source { DEFAULT, CALL, ENVIRONMENT, OPTIONS, CONFIG_FILE };

/* A value that is lent. The instance's `starting`. */
struct lease {
    int64_t value, former;
    enum source source; /* the former one */
};

struct bmi__settings {
    _Atomic int64_t values[TABLE_MOST];
    _Atomic enum source sources[TABLE_MOST];
    struct lease leases[TABLE_MOST];
};

struct bmi__settings bmi__default_settings; /* filled with the table */

int64_t bmi__setting(struct bmi_instance *instance, enum setting setting)
{
    struct bmi__settings *settings = instance->settings;
    return atomic_load_explicit(&settings->values[setting], memory_order_relaxed);
}

static void assign(struct bmi__settings *settings, int index, int64_t value, enum source source)
{
    atomic_store(&settings->sources[index], source);
    atomic_store(&settings->values[index], value);
}

/* Letters as they are in our own names, whatever the program's locale: in a Turkish one `i` and `I`
 * are two different letters. */
static char upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

static bool alike(const char *one, const char *other, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (upper(one[i]) != upper(other[i]))
            return false;
    return true;
}

static int method_settings;

/* The index of a name among the first `count` entries, or -1. */
static int find_among(int count, const char *name, size_t length)
{
    for (int i = 0; i < count; i++)
        if (strlen(table[i].name) == length && alike(table[i].name, name, length))
            return i;
    return -1;
}

/* Appends a method's settings, unless another method with the same table came before. */
static void method_settings_add(const struct bmi_setting_spec *spec)
{
    for (; spec != NULL && spec->name != NULL; spec++) {
        int count = SETTINGS + method_settings;
        if (find_among(count, spec->name, strlen(spec->name)) >= 0)
            continue;
        if (count == TABLE_MOST)
            abort(); /* METHOD_SETTINGS is too small: a defect of ours */
        table[count].name = spec->name;
        table[count].kind = (enum kind)spec->kind;
        table[count].preset = spec->preset;
        table[count].least = spec->least;
        table[count].most = spec->most;
        table[count].help = spec->help;
        method_settings++;
    }
}

static void presets_set(struct bmi__settings *settings)
{
    for (int i = 0; i < SETTINGS + method_settings; i++)
        atomic_store(&settings->values[i], table[i].preset);
}

static void table_fill(void)
{
    for (int i = 0; bmi__methods[i] != NULL; i++)
        method_settings_add(bmi__methods[i]->settings);
    presets_set(&bmi__default_settings);
}

/* Also fills the table, and the default instance's values, at the first call. */
static int table_count(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, table_fill);
    return SETTINGS + method_settings;
}

void bmi__setting_put(struct bmi_instance *instance, enum setting setting, int64_t value)
{
    struct bmi__settings *settings = instance->settings;
    table_count();
    atomic_store(&settings->values[setting], value);
}

void bmi__setting_put_by_call(struct bmi_instance *instance, enum setting setting, int64_t value)
{
    struct bmi__settings *settings = instance->settings;
    table_count();
    assign(settings, (int)setting, value, CALL);
}

void bmi__settings_fill(void)
{
    table_count();
}

static int find(const char *name, size_t length)
{
    return find_among(table_count(), name, length);
}

int bmi__setting_find(const char *name)
{
    return find(name, strlen(name));
}

int64_t bmi_method_setting(struct bmi_instance *instance, const char *name)
{
    int index = find(name, strlen(name));
    if (index < 0)
        abort(); /* a method asks for a setting that is not in the table: a defect of ours */
    return bmi__setting(instance, (enum setting)index);
}

const char *bmi_method_setting_text(struct bmi_instance *instance, const char *name)
{
    int64_t value = bmi_method_setting(instance, name);
    return value != 0 ? (const char *)(intptr_t)value : "";
}

enum { TEXT_MOST = 255 };               /* as struct bmi_setting has room for */
static const char no_text[] = "(none)"; /* how an empty one is shown: a word in each column */

static struct kept_text {
    struct kept_text *next;
    char text[];
} * kept_texts;

static int parse_text(const char *text, int64_t *value)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    size_t size = strlen(text) + 1;
    *value = 0;
    if (size == 1 || strcmp(text, no_text) == 0)
        return 0;
    if (size > TEXT_MOST + 1 || strcmp(text, "?") == 0) /* so that "?" asks for the valid values */
        return -EINVAL;
    pthread_mutex_lock(&lock);
    struct kept_text *kept = kept_texts;
    while (kept != NULL && strcmp(kept->text, text) != 0)
        kept = kept->next;
    if (kept == NULL && (kept = malloc(sizeof *kept + size)) != NULL) {
        memcpy(kept->text, text, size);
        kept->next = kept_texts;
        kept_texts = kept;
    }
    pthread_mutex_unlock(&lock);
    *value = kept != NULL ? (int64_t)(intptr_t)kept->text : 0;
    return kept != NULL ? 0 : -ENOMEM;
}

static int parse_word(const char *text, const char *const *words, int64_t *value)
{
    for (int i = 0; words[i] != NULL; i++)
        if (strlen(words[i]) == strlen(text) && alike(text, words[i], strlen(text))) {
            *value = i;
            return 0;
        }
    return -EINVAL;
}

static int parse_number(const char *text, bool bytes, int64_t *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || errno != 0)
        return -EINVAL;
    static const char units[] = "KMG";
    const char *unit = bytes && *end != '\0' ? strchr(units, upper(*end)) : NULL;
    if (unit != NULL) {
        int shift = 10 * (int)(unit - units + 1);
        if (number > (INT64_MAX >> shift) || number < 0)
            return -EINVAL;
        number <<= shift;
        end++;
    }
    *value = number;
    return *end == '\0' ? 0 : -EINVAL;
}

static int parse(int index, const char *text, int64_t *value)
{
    static const char *const off_on[] = {"off", "on", NULL};
    static const char *const no_yes[] = {"no", "yes", NULL};
    int status = -EINVAL;
    if (table[index].kind == TEXT)
        return parse_text(text, value);
    if (table[index].kind == LEVEL)
        status = parse_word(text, levels, value);
    if (table[index].kind == POLLER)
        status = parse_word(text, poller_words, value);
    if (table[index].kind == POLICY)
        status = parse_word(text, policies, value);
    if (table[index].kind == SWITCH) {
        status = parse_word(text, off_on, value);
        if (status < 0)
            status = parse_word(text, no_yes, value);
    }
    if (status < 0)
        status = parse_number(text, table[index].kind == BYTES, value);
    if (status < 0 || *value < table[index].least || *value > table[index].most)
        return -EINVAL;
    return 0;
}

static void valid_names(char *text, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < table_count() && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", table[i].name);
}

/* How many letters differ, are missing or too many; `length` of the one's. Upper bound 64. */
static unsigned distance(const char *one, size_t length, const char *other)
{
    enum { MOST = 64 };
    unsigned row[MOST];
    size_t width = strlen(other);
    if (length >= MOST || width >= MOST)
        return MOST;
    for (unsigned k = 0; k <= width; k++)
        row[k] = k;
    for (size_t i = 0; i < length; i++) {
        unsigned diagonal = row[0]++;
        for (size_t k = 0; k < width; k++) {
            bool same = upper(one[i]) == upper(other[k]);
            unsigned best = diagonal + !same;
            if (row[k] + 1 < best)
                best = row[k] + 1;
            diagonal = row[k + 1];
            row[k + 1] = diagonal + 1 < best ? diagonal + 1 : best;
        }
    }
    return row[width];
}

/* The setting whose name is most like this one, if any is; else NULL. */
static const char *nearest(const char *name, size_t length)
{
    const char *found = NULL;
    unsigned least = 1 + (unsigned)length / 3;
    for (int i = 0; i < table_count(); i++) {
        unsigned differs = distance(name, length, table[i].name);
        if (differs <= least && (found == NULL || differs < least)) {
            found = table[i].name;
            least = differs;
        }
    }
    return found;
}

/* Logs that there is no such setting, and lists the valid ones. */
static void unknown_log(struct bmi_instance *instance, enum bmi_log_level level, const char *what,
                        const char *name, size_t length)
{
    char names[1024];
    const char *like = nearest(name, length);
    valid_names(names, sizeof names);
    bmi__log(instance, level, "%s is no setting%s%s%s; settings are: %s", what,
             like != NULL ? ", perhaps " : "", like != NULL ? like : "",
             like != NULL ? " is meant" : "", names);
}

/* `where`: "", or the place of the text, for the log. */
static int parse_logged(struct bmi_instance *instance, const char *where, int index,
                        const char *text, int64_t *value)
{
    int status = parse(index, text, value);
    if (status < 0 && table[index].kind == TEXT)
        bmi__log(instance, BMI_LOG_ERROR,
                 "%ssetting %s: bad value \"%.64s\"; valid: a text of at most %d bytes", where,
                 table[index].name, text, TEXT_MOST);
    else if (status < 0)
        bmi__log(instance, BMI_LOG_ERROR,
                 "%ssetting %s: bad value \"%.64s\"; valid: %s%lld to %lld", where,
                 table[index].name, text,
                 table[index].kind == LEVEL    ? "off, error, warn, info, debug, trace, or "
                 : table[index].kind == SWITCH ? "off, on, or "
                 : table[index].kind == POLLER ? "caller, background, or "
                 : table[index].kind == POLICY ? "batch, normal, idle, or "
                                               : "",
                 (long long)table[index].least, (long long)table[index].most);
    return status;
}

/* Warns of variables that begin with BMI_ and are no settings: most are misspelt. Variables of the
 * tests and programs in this tree are known. */
static void environment_check(struct bmi_instance *instance)
{
    static const char *const ours[] = {"TEST_", "FUZZ_", "BENCH_", "TASK_", "STRIPEFS_", NULL};
    for (char **variable = environ; *variable != NULL; variable++) {
        const char *name = *variable + 4;
        size_t length = strcspn(name, "=");
        bool known = strncmp(*variable, "BMI_", 4) != 0 || find(name, length) >= 0;
        for (int i = 0; !known && ours[i] != NULL; i++)
            known = strncmp(name, ours[i], strlen(ours[i])) == 0;
        if (known)
            continue;
        char what[128];
        snprintf(what, sizeof what, "the environment's %.*s", (int)(length < 64 ? length + 4 : 68),
                 *variable);
        unknown_log(instance, BMI_LOG_WARN, what, name, length);
    }
}

/* Reads a setting's variable. */
static int load_one(struct bmi_instance *instance, int index)
{
    struct bmi__settings *settings = instance->settings;
    char name[64] = "BMI_";
    for (size_t k = 0; k <= strlen(table[index].name); k++)
        name[4 + k] = upper(table[index].name[k]);
    const char *text = getenv(name);
    int64_t value;
    if (text == NULL || *text == '\0')
        return 0;
    if (index == SETTING_CONFIG_FILE && secure_getenv(name) == NULL) {
        bmi__log(instance, BMI_LOG_WARN,
                 "%s is ignored: this process has more privileges than its caller", name);
        return 0;
    }
    if (index == SETTING_LOG && parse(index, text, &value) < 0)
        /* a user that sets it wants the error */
        bmi__setting_put(instance, SETTING_LOG, BMI_LOG_ERROR);
    if (parse_logged(instance, "", index, text, &value) < 0)
        return -EINVAL;
    assign(settings, index, value, ENVIRONMENT);
    return 0;
}

int bmi__settings_load(struct bmi_instance *instance)
{
    table_count();
    /* The log's level first: it decides whether errors in the other settings are logged. */
    int status = load_one(instance, SETTING_LOG);
    for (int i = 0; i < table_count() && status == 0; i++)
        status = load_one(instance, i);
    if (status == 0)
        environment_check(instance);
    return status;
}

/* How to handle an assignment. CHECK, CHECK_LENT: parse it only, as for SET or for LEND. SET: make
 * it until the process ends. LEND: until the last BMI_finalize; unknown options of the classic
 * library are ignored. */
enum how { CHECK, CHECK_LENT, SET, LEND };

static bool is_lent(enum source source)
{
    return source == OPTIONS || source == CONFIG_FILE;
}

static void lend(struct bmi__settings *settings, int index, int64_t value, enum source source)
{
    struct lease *lease = &settings->leases[index];
    enum source former = atomic_load(&settings->sources[index]);
    if (!is_lent(former)) {
        lease->former = atomic_load(&settings->values[index]);
        lease->source = former;
    }
    lease->value = value;
    assign(settings, index, value, source);
}

void bmi__settings_return(struct bmi_instance *instance)
{
    struct bmi__settings *settings = instance->settings;
    for (int i = 0; i < table_count(); i++) {
        enum source source = atomic_load(&settings->sources[i]);
        int64_t value = settings->leases[i].value;
        if (!is_lent(source) || !atomic_compare_exchange_strong(&settings->sources[i], &source,
                                                                settings->leases[i].source))
            continue;
        atomic_compare_exchange_strong(&settings->values[i], &value, settings->leases[i].former);
    }
}

/* Options of the classic library's network modules are named after the module. A program passes the
 * same string to each library that it is built with, so options of modules without settings here
 * are no error. */
static bool is_classic_option(const char *name)
{
    static const char *const modules[] = {"ib_", "mx_", "portals_", "rdma_", "zoid_", NULL};
    for (int i = 0; modules[i] != NULL; i++)
        if (alike(name, modules[i], strlen(modules[i])))
            return true;
    return false;
}

static int set_one(struct bmi_instance *instance, char *text, enum how how)
{
    struct bmi__settings *settings = instance->settings;
    char *equals = strchr(text, '=');
    size_t length = equals != NULL ? (size_t)(equals - text) : strlen(text);
    int index = find(text, length);
    if (index < 0 && (how == CHECK_LENT || how == LEND) && is_classic_option(text)) {
        if (how == LEND)
            bmi__log(instance, BMI_LOG_WARN, "option \"%.100s\" is of the classic library: ignored",
                     text);
        return 0;
    }
    if (equals == NULL && index >= 0) {
        bmi__log(instance, BMI_LOG_ERROR, "setting %s: no value; %s=value is wanted",
                 table[index].name, table[index].name);
        return -EINVAL;
    }
    if (index < 0) {
        char what[128];
        snprintf(what, sizeof what, "\"%.100s\": this", text);
        unknown_log(instance, BMI_LOG_ERROR, what, text, length);
        return -EINVAL;
    }
    int64_t value;
    if (parse_logged(instance, "", index, equals + 1, &value) < 0)
        return -EINVAL;
    if (how == LEND)
        lend(settings, index, value, OPTIONS);
    if (how == SET)
        assign(settings, index, value, CALL);
    return 0;
}

static int set_all(struct bmi_instance *instance, const char *text, enum how how)
{
    char copy[1024], *rest = copy, *part;
    if (*text == '\0' || strlen(text) >= sizeof copy)
        return -EINVAL;
    strcpy(copy, text);
    while ((part = strsep(&rest, ",")) != NULL) {
        part = bmi__trimmed(part);
        if (*part != '\0' && set_one(instance, part, how) < 0)
            return -EINVAL;
    }
    return 0;
}

int bmi__settings_set(struct bmi_instance *instance, const char *text)
{
    int status = set_all(instance, text, CHECK);
    return status < 0 ? status : set_all(instance, text, SET);
}

int bmi__settings_lend(struct bmi_instance *instance, const char *text)
{
    /* so that errors and ignored options are logged */
    int status = load_one(instance, SETTING_LOG);
    if (status == 0)
        status = set_all(instance, text, CHECK_LENT);
    return status < 0 ? status : set_all(instance, text, LEND);
}

/* Makes an assignment of the file at `path`. */
static int file_assign(struct bmi_instance *instance, const char *path,
                       const struct bmi__config_cursor *line)
{
    struct bmi__settings *settings = instance->settings;
    char where[320];
    int64_t value;
    int index = find(line->name, strlen(line->name));
    snprintf(where, sizeof where, "%s:%u: ", path, line->line);
    if (index < 0) {
        char what[sizeof where + 80];
        snprintf(what, sizeof what, "%s\"%.64s\"", where, line->name);
        unknown_log(instance, BMI_LOG_ERROR, what, line->name, strlen(line->name));
        return -EINVAL;
    }
    if (index == SETTING_CONFIG_FILE) {
        bmi__log(instance, BMI_LOG_ERROR, "%sa configuration file cannot name another one", where);
        return -EINVAL;
    }
    if (parse_logged(instance, where, index, line->value, &value) < 0)
        return -EINVAL;
    enum source source = atomic_load(&settings->sources[index]);
    if (source == DEFAULT || source == CONFIG_FILE)
        lend(settings, index, value, CONFIG_FILE);
    return 0;
}

static int file_assign_all(struct bmi_instance *instance, const char *path, char *text, size_t size)
{
    struct bmi__config_cursor cursor = {.at = text, .end = text + size};
    int status;
    while ((status = bmi__config_next(&cursor)) > 0)
        if ((status = file_assign(instance, path, &cursor)) < 0)
            return status;
    if (status < 0)
        bmi__log(instance, BMI_LOG_ERROR, "%s:%u: %s", path, cursor.line, cursor.reason);
    return status;
}

int bmi__settings_file(struct bmi_instance *instance)
{
    int64_t kept = bmi__setting(instance, SETTING_CONFIG_FILE);
    const char *path = (const char *)(intptr_t)kept, *reason;
    char *text;
    size_t size;
    if (kept == 0)
        return 0;
    int status = bmi__config_read(path, &text, &size, &reason);
    if (status < 0) {
        bmi__log(instance, BMI_LOG_ERROR, "config_file %s: cannot be read: %s", path, reason);
        return status;
    }
    status = file_assign_all(instance, path, text, size);
    free(text);
    return status;
}

static void show(struct bmi_instance *instance, int index, char *text, size_t size)
{
    long long value = bmi__setting(instance, (enum setting)index);
    if (table[index].kind == LEVEL)
        snprintf(text, size, "%s", levels[value]);
    else if (table[index].kind == POLLER)
        snprintf(text, size, "%s", poller_words[value]);
    else if (table[index].kind == POLICY)
        snprintf(text, size, "%s", policies[value]);
    else if (table[index].kind == SWITCH)
        snprintf(text, size, "%s", value ? "on" : "off");
    else if (table[index].kind == TEXT)
        snprintf(text, size, "%s", value != 0 ? (const char *)(intptr_t)value : no_text);
    else
        snprintf(text, size, "%lld", value);
}

int bmi__settings_get(struct bmi_instance *instance, const char *name, char *value, uint32_t size)
{
    int index = find(name, strlen(name));
    if (index < 0)
        return -ENOENT;
    show(instance, index, value, size);
    return 0;
}

int bmi_setting_next(int index, const char **name, const char **value, const char **help)
{
    static _Thread_local char text[64];
    if (index < 0 || index >= table_count())
        return -BMI_ENOENT;
    show(&bmi__default, index, text, sizeof text);
    *name = table[index].name;
    *value = text;
    if (table[index].kind == TEXT) {
        int64_t kept = bmi__setting(&bmi__default, (enum setting)index);
        *value = kept != 0 ? (const char *)(intptr_t)kept : no_text;
    }
    *help = table[index].help;
    return 0;
}

/* ---- open and close -------------------------------------------------------------------------- */

int bmi__settings_open(struct bmi_instance *instance)
{
    table_count();
    instance->settings = calloc(1, sizeof *instance->settings);
    if (instance->settings == NULL)
        return -ENOMEM;
    presets_set(instance->settings);
    return 0;
}

void bmi__settings_close(struct bmi_instance *instance)
{
    free(instance->settings);
    instance->settings = NULL;
}
