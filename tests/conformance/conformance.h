/* SPDX-License-Identifier: BSD-3-Clause
 *
 * conformance.h - the description of a method by its test; the suite supplies the cases.
 *
 * Every case runs in processes of its own, over each arrangement of two roles that the method can
 * do, once with immediate completion and once without (see runner.c for the program's options). The
 * suite uses bmi.h only, not the library's internals.
 */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

/* How the two roles of a case find each other. */
enum conformance_arrangement {
    CONFORMANCE_SELF,          /* one process that looks up its own address; roles are threads */
    CONFORMANCE_PAIR,          /* two processes that both listen and look each other up */
    CONFORMANCE_FIRST_SERVES,  /* role 0 listens; role 1 looks it up and sends it a message */
    CONFORMANCE_SECOND_SERVES, /* the reverse */
    CONFORMANCE_INSTANCES, /* one process, in which each role is a thread with an instance of its
                                  own; otherwise as CONFORMANCE_PAIR */
    CONFORMANCE_ARRANGEMENTS
};

/* Properties of some methods only. */
enum {
    CONFORMANCE_PROCESSES = 1, /* connects processes; without it only CONFORMANCE_SELF runs */
    CONFORMANCE_PORTS = 2,     /* addresses are scheme://host:port over the host's IP stack */
    CONFORMANCE_SOCKETS = 4,   /* and data goes over sockets, which have the options of bmi.h */
    CONFORMANCE_ALONE = 8,     /* does not connect instances of one process */
};

struct conformance_method {
    const char *name;    /* "bmi_tcp" */
    const char *scheme;  /* "tcp" */
    const char *listen;  /* the listen address of a process: "tcp://127.0.0.1:0" */
    const char *refused; /* an address without a listener; NULL with CONFORMANCE_PORTS: one
                            is made */
    const char *host;    /* the result of BMI_addr_rev_lookup_unexpected; NULL: anything */
    const char *const *bad_addresses; /* addresses that a look-up refuses with EINVAL; ends with
                                         NULL */
    unsigned features;
};

/* main() of a method's test. Returns the exit status: 0, 1, or 77 if no case could run. */
int conformance_main(int argc, char **argv, const struct conformance_method *method);

#endif
