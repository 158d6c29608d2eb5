/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tags.h - the end of tags.c. */
#ifndef BMI_TAGS_H
#define BMI_TAGS_H

struct bmi_instance;

/* The instance ends: its tags are taken no more. */
void bmi__tags_stop(struct bmi_instance *instance);

#endif
