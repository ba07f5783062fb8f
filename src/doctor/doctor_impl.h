/* Inside the doctor: what the checks share. */
#pragma once

#include "doctor/doctor.h"

struct doctor {
    const struct doctor_config *config;
    struct doctor_report *report;
    bool kvm_works;
    bool qemu_works, firecracker_works;
};

/* Adds a line; advice "" for ok. */
struct doctor_check *doctor_add(struct doctor *d, const char *name, enum doctor_status status,
                                const char *advice, const char *detail, ...)
    __attribute__((format(printf, 5, 6)));

/* root + path into a fixed array; false when it does not fit. */
bool doctor_path(const struct doctor *d, const char *path, char *to, size_t size);

/* Text of a small file below root: heap, or NULL. */
char *doctor_read(const struct doctor *d, const char *path);

/* Full path of a program; false when it is not installed. */
bool doctor_find_program(const struct doctor *d, const char *name, char *to, size_t size);

/* First line that a program prints for --version; false when it cannot be run within 5 s. */
bool doctor_program_version(const char *path, char *to, size_t size);

/* checks_host.c */
void doctor_check_cpu(struct doctor *d);
void doctor_check_kvm(struct doctor *d);
void doctor_check_tun(struct doctor *d);
void doctor_check_loop(struct doctor *d);
void doctor_check_cgroup(struct doctor *d);
void doctor_check_userns(struct doctor *d);
void doctor_check_memory(struct doctor *d);
void doctor_check_root(struct doctor *d);
void doctor_check_port(struct doctor *d);

/* checks_tools.c */
void doctor_check_disk(struct doctor *d);
void doctor_check_reflink(struct doctor *d);
void doctor_check_kernel(struct doctor *d);
void doctor_check_qemu(struct doctor *d);
void doctor_check_firecracker(struct doctor *d);
void doctor_check_mmdebstrap(struct doctor *d);
void doctor_check_mke2fs(struct doctor *d);
