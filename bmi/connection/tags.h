/* SPDX-License-Identifier: BSD-3-Clause
 *
 * tags.h - the end of tags.c. */
#ifndef BMI_TAGS_H
#define BMI_TAGS_H

/* Forgets all taken tags. No thread uses the library. */
void bmi__tags_stop(void);

#endif
