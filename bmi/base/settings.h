/* SPDX-License-Identifier: BSD-3-Clause
 *
 * settings.h - every setting of the library: the core's, and those that methods declare.
 *
 * A setting is an integer or a text with a name, bounds, and a help text; its variable is BMI_ and
 * the name in capitals. Values are atomic: any thread reads; the options, the environment, and the
 * configuration file (at the first initialize) and BMI_set_info write.
 */
#ifndef BMI_SETTINGS_H
#define BMI_SETTINGS_H

#include <stdint.h>

struct bmi_instance;

enum setting {
    SETTING_IMMEDIATE,
    SETTING_COALESCE,
    SETTING_ANNOUNCE,
    SETTING_JOIN,
    SETTING_EAGER_MAX,
    SETTING_UNEXPECTED_SIZE,
    SETTING_PEER_MEMORY,
    SETTING_TOTAL_MEMORY,
    SETTING_PEER_TIMEOUT,
    SETTING_CONNECT_TIMEOUT,
    SETTING_CANCEL_GRACE,
    SETTING_LINGER,
    SETTING_IDLE_REAP,
    SETTING_SPIN,
    SETTING_PROGRESS,
    SETTING_OFFLOAD,
    SETTING_WORKER_POLICY,
    SETTING_DEAD_PEERS,
    SETTING_REGISTRATION_BYTES,
    SETTING_REGISTRATION_COUNT,
    SETTING_REGISTRATION_KEEP,
    SETTING_STATS,
    SETTING_REPORT,
    SETTING_LOG,
    SETTING_CONFIG_FILE,
    SETTINGS /* of the core; methods declare theirs in bmi_method.settings */
};

/* values of SETTING_PROGRESS */
enum { PROGRESS_CALLER, PROGRESS_BACKGROUND };

int64_t bmi__setting(struct bmi_instance *instance, enum setting setting);
/* Sets one to a value that is within its bounds; the recorded source of the value stays. */
void bmi__setting_put(struct bmi_instance *instance, enum setting setting, int64_t value);
/* The same on behalf of the program, whose values the configuration file does not replace. */
void bmi__setting_put_by_call(struct bmi_instance *instance, enum setting setting, int64_t value);
/* Fills the table of settings, and the default instance's values, unless that was done. */
void bmi__settings_fill(void);
/* The place of a setting that a method declares; -1: there is none. */
int bmi__setting_find(const char *name);

/* Sets "name=value[,name=value...]", all or none, for the time from a BMI_initialize to the last
 * BMI_finalize. Options of the classic library's modules are ignored. -EINVAL: the log says why. */
int bmi__settings_lend(struct bmi_instance *instance, const char *text);
/* Restores the values before bmi__settings_lend and bmi__settings_file, except for settings that
 * were changed since. */
void bmi__settings_return(struct bmi_instance *instance);

/* Reads the environment. -EINVAL: a value is bad; the log names it and the valid ones. Warns of
 * variables that begin with BMI_ and are no settings. */
int bmi__settings_load(struct bmi_instance *instance);

/* Sets from the file that the setting config_file names, until bmi__settings_return, except for
 * settings that the program, its options, or the environment has set. An errno: the log has the
 * line and the cause, and the caller has to call bmi__settings_return. */
int bmi__settings_file(struct bmi_instance *instance);

/* Sets from "name=value", or several separated by commas. -EINVAL: unknown name or bad value,
 * logged with the list of valid ones; nothing is changed then. */
int bmi__settings_set(struct bmi_instance *instance, const char *text);

/* Writes a setting's value as text. -ENOENT: no such name. */
int bmi__settings_get(struct bmi_instance *instance, const char *name, char *value, uint32_t size);

/* Called before an instance starts and after it has ended; never for the default one.
 * Returns 0 or -ENOMEM. */
int bmi__settings_open(struct bmi_instance *instance);
void bmi__settings_close(struct bmi_instance *instance);

#endif
