/* /etc/hosts: programs such as sudo look the machine's own name up there. */
#pragma once

#include "base/buf.h"

#define HOSTS_MAX 65536 /* a longer file is the user's business alone */

/* The new text for an old one of n bytes: a line for hostname, marked as ours, in place of an earlier marked
 * one; and localhost where it has no line. False when out is full. */
bool hosts_text(const char *old, size_t n, const char *hostname, struct buf *out);

/* Brings the file up to date; best effort: a file system that is read-only, or a file that is not a regular
 * one, stays as it is. write replaces a file's text. */
void hosts_update(const char *path, const char *hostname, int (*write)(const char *path, const char *text));
