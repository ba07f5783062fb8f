/* Small readers of what HTTP carries as text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A Range header with one range of bytes, against a size. */
enum range_kind { RANGE_NONE, RANGE_PART, RANGE_UNSATISFIABLE };

/* RANGE_NONE also for what a server may ignore (RFC 9110, 14.2): another unit, several ranges, bad syntax. */
enum range_kind range_parse(const char *header, uint64_t size, uint64_t *ret_offset, uint64_t *ret_length);

/* An If-Match-like list of entity tags: whether it holds this one (weak comparison) or "*". */
bool etag_listed(const char *header, const char *etag);

/* Permission bits in octal ("644", "0644", at most 7777); false when s is not that. */
bool mode_parse(const char *s, uint32_t *ret);

/* "Sun, 06 Nov 1994 08:49:37 GMT" into to. */
#define HTTP_DATE_SIZE 32
void http_date(int64_t unix_s, char to[HTTP_DATE_SIZE]);

/* Base64 in either alphabet (RFC 4648), with or without its padding, into to, which has room for strlen(s) +
 * 4 bytes; false when s is not that. */
bool b64_read(const char *s, char *to, size_t *ret_n);

/* The alphabet for URLs, without padding: for cursors. to has room for n / 3 * 4 + 5 bytes. */
void b64_write_url(const void *data, size_t n, char *to);

/* How good a media type (lower case, without parameters) is by an Accept header: thousandths, 0 when it is
 * not wanted. NULL and "" want anything. */
unsigned accept_quality(const char *header, const char *type);

/* Whether a Content-Type or one token of a list is `type`, parameters aside. */
bool media_is(const char *header, const char *type);
