/* What the files of src/api share. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "api/api.h"

#define PAGE_DEFAULT 50
#define PAGE_MAX 200

struct events;
struct metrics;

struct api {
    struct api_config config;
    struct http_route *routes; /* owned: all tables, with this api as their argument */
    size_t route_count;
    struct events *events;
    struct metrics *metrics;
    char *openapi; /* the document, made when it is first asked for */
    bool ready;
};

struct route_list {
    const struct http_route *routes;
    size_t n;
};

/* The tables of routes, one of each file. */
struct route_list api_sandbox_routes(void);
struct route_list api_snapshot_routes(void);
struct route_list api_operation_routes(void);
struct route_list api_template_routes(void);
struct route_list api_key_routes(void);
struct route_list api_event_routes(void);
struct route_list api_info_routes(void);
struct route_list api_doctor_routes(void);

/* --- page.c --- */
struct page {
    uint64_t limit;
    const char *cursor; /* id of the last item seen, or NULL */
};

/* limit= and cursor= of a request. */
int page_read(const struct http_request *r, struct page *ret, struct error *err);

/* {"items": [...], "next_cursor": ...|null}; items is stolen, next may be NULL. */
json_t *page_json(json_t *items, const char *next);

/* --- who may see what --- */
/* An admin sees everything, others what belongs to their project. */
bool api_may_see_project(const struct http_request *r, const char *project);
bool api_may_see(const struct http_request *r, const struct sandbox *sb);

/* The sandbox of "{id}", or NULL with ERROR_NOT_FOUND: also for one of another project. */
struct sandbox *api_sandbox_of(struct api *a, const struct http_request *r, struct error *err);

/* Whether the operation may be seen: its sandbox may be, or it has none. */
bool api_may_see_operation(struct api *a, const struct http_request *r, const struct operation *op);

/* The body as an object, or NULL with ERROR_INVALID when there is none. */
const json_t *api_body(const struct http_request *r, struct error *err);

/* 0 when the body is absent or an empty object. */
int api_no_fields(const struct http_request *r, struct error *err);

/* Answers a change when it is durable; operation: adds Location. body: stolen. */
void api_reply_change(struct api *a, struct http_request *r, unsigned status, json_t *body,
                      const struct operation *op);

/* The same with {"sandbox", "operation"}. */
void api_reply_both(struct api *a, struct http_request *r, unsigned status, const struct sandbox *sb,
                    const struct operation *op);
