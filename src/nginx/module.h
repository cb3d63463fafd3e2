/* Shared by the C table of the module and its C++ code: the configuration, in C, and the handlers of directives. */
#pragma once

#ifdef __cplusplus
#include "nginx/ngx.h"
extern "C" {
#else
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
#endif


typedef struct {
    ngx_array_t   zones;             /* of pointers to Zone */
    ngx_array_t   limits;            /* of pointers to AppliedLimit: every rate_limit of the configuration */
    ngx_array_t   locations;         /* of pointers to ngx_http_rate_limit_loc_conf_t */
    ngx_array_t   servers;           /* of pointers to RedisServer */
    ngx_array_t   keys;              /* of pointers to ClientKey */
    ngx_array_t   tokens;            /* of pointers to TokenSource */
    ngx_array_t   body_variables;    /* of pointers to BodyVariable */
    void         *body_statistics;   /* a BodyStatistics in shared memory; NULL without body variables */
    ngx_flag_t    has_jwt_keys;      /* the configuration has rate_limit_jwt_key */
    ngx_flag_t    observed;          /* some location shows counters */
    ngx_flag_t    shows_history;     /* some location shows the history of zones */
    ngx_flag_t    has_precontent;    /* some limit has phase=precontent */
    ngx_flag_t    has_settle;        /* some limit has settle= */

    ngx_connection_t  *watch;        /* of a worker with background tasks; see background.cc */
    void         *history_timer;     /* a HistoryTimer of this worker; NULL if no location shows the history */
} ngx_http_rate_limit_main_conf_t;


typedef struct {
    void         *verifier;          /* an identity::Verifier; NULL without rate_limit_jwt_key */
    void         *token;             /* a TokenSource; NULL for the bearer token */
} ngx_http_rate_limit_srv_conf_t;


/* What a location decides in one phase. */
typedef struct {
    ngx_uint_t    phase;             /* NGX_HTTP_ACCESS_PHASE or NGX_HTTP_PRECONTENT_PHASE */
    ngx_array_t  *limits;            /* of pointers to AppliedLimit; NULL if there are none */
    ngx_array_t  *shadows;           /* the same for rate_limit_shadow */
} ngx_http_rate_limit_phase_t;


typedef struct {
    ngx_array_t  *limits;            /* of pointers to AppliedLimit, of both phases; empty for off */
    ngx_array_t  *shadows;           /* the same for rate_limit_shadow */
    ngx_array_t  *outer_limits;      /* limits that nested locations inherit; an API location itself does not */
    ngx_array_t  *outer_shadows;
    ngx_http_rate_limit_phase_t   access;      /* this and the next two are set once all is read */
    ngx_http_rate_limit_phase_t  *precontent;  /* NULL if this location decides nothing there */
    void         *lone_limit;        /* an AppliedLimit, if the access phase decides nothing else; else NULL */
    ngx_uint_t    status;            /* of a rejection */
    ngx_uint_t    grpc_status;       /* of a rejected gRPC request; NGX_HTTP_RATE_LIMIT_GRPC_OFF for `status` */
    ngx_uint_t    headers;           /* bits of NGX_HTTP_RATE_LIMIT_HEADERS_* */
    ngx_uint_t    body;              /* one of NGX_HTTP_RATE_LIMIT_BODY_* */
    ngx_uint_t    log_level;         /* of a rejection */
    ngx_flag_t    dry_run;
    void         *api;               /* an ApiSettings; NULL without rate_limit_api; inherited by limit_except only */
    void         *requests;          /* a BodySettings; NULL without rate_limit_request */
    void         *responses;         /* a BodySettings; NULL without rate_limit_response */
    ngx_http_conf_ctx_t  context;    /* of this location, for all modules; set after merging */
} ngx_http_rate_limit_loc_conf_t;


#define NGX_HTTP_RATE_LIMIT_HEADERS_OFF     0
#define NGX_HTTP_RATE_LIMIT_HEADERS_LEGACY  1
#define NGX_HTTP_RATE_LIMIT_HEADERS_IETF    2
#define NGX_HTTP_RATE_LIMIT_HEADERS_ALL     3

#define NGX_HTTP_RATE_LIMIT_GRPC_OFF        0

#define NGX_HTTP_RATE_LIMIT_BODY_AUTO       0
#define NGX_HTTP_RATE_LIMIT_BODY_PROBLEM    1
#define NGX_HTTP_RATE_LIMIT_BODY_OFF        2


extern ngx_module_t  ngx_http_rate_limit_module;


void *ngx_http_rate_limit_create_main_conf(ngx_conf_t *cf);
void *ngx_http_rate_limit_create_srv_conf(ngx_conf_t *cf);
char *ngx_http_rate_limit_merge_srv_conf(ngx_conf_t *cf, void *parent, void *child);
void *ngx_http_rate_limit_create_loc_conf(ngx_conf_t *cf);
char *ngx_http_rate_limit_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child);

ngx_int_t ngx_http_rate_limit_check_configuration(ngx_conf_t *cf);

ngx_int_t ngx_http_rate_limit_add_variables(ngx_conf_t *cf);
ngx_int_t ngx_http_rate_limit_init(ngx_conf_t *cf);
ngx_int_t ngx_http_rate_limit_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_http_rate_limit_init_process(ngx_cycle_t *cycle);
void ngx_http_rate_limit_exit_process(ngx_cycle_t *cycle);

char *ngx_http_rate_limit_redis(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_jwt_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_jwt_source(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_shadow(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_request(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_response(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_api(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_metrics(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_dashboard(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_grpc_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_http_rate_limit_word(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);


#ifdef __cplusplus
}
#endif
