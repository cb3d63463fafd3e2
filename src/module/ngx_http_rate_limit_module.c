
/*
 * The module as nginx sees it: its directives and its hooks.
 */


#include "nginx/module.h"


static ngx_conf_enum_t  ngx_http_rate_limit_headers_words[] = {
    { ngx_string("off"), NGX_HTTP_RATE_LIMIT_HEADERS_OFF },
    { ngx_string("legacy"), NGX_HTTP_RATE_LIMIT_HEADERS_LEGACY },
    { ngx_string("ietf"), NGX_HTTP_RATE_LIMIT_HEADERS_IETF },
    { ngx_string("all"), NGX_HTTP_RATE_LIMIT_HEADERS_ALL },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_rate_limit_body_words[] = {
    { ngx_string("auto"), NGX_HTTP_RATE_LIMIT_BODY_AUTO },
    { ngx_string("problem"), NGX_HTTP_RATE_LIMIT_BODY_PROBLEM },
    { ngx_string("off"), NGX_HTTP_RATE_LIMIT_BODY_OFF },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_rate_limit_dry_run_words[] = {
    { ngx_string("on"), 1 },
    { ngx_string("off"), 0 },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_rate_limit_log_level_words[] = {
    { ngx_string("info"), NGX_LOG_INFO },
    { ngx_string("notice"), NGX_LOG_NOTICE },
    { ngx_string("warn"), NGX_LOG_WARN },
    { ngx_string("error"), NGX_LOG_ERR },
    { ngx_null_string, 0 }
};


static ngx_command_t  ngx_http_rate_limit_commands[] = {

    { ngx_string("rate_limit_redis"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_redis,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_key"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_key,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_jwt_key"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_jwt_key,
      NGX_HTTP_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_jwt_source"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_jwt_source,
      NGX_HTTP_SRV_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_zone,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF
                        |NGX_CONF_ANY,
      ngx_http_rate_limit,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_shadow"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF
                        |NGX_CONF_ANY,
      ngx_http_rate_limit_shadow,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_request"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_request,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_response"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_response,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_status"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_status,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_rate_limit_loc_conf_t, status),
      NULL },

    { ngx_string("rate_limit_grpc_status"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_grpc_status,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_rate_limit_loc_conf_t, grpc_status),
      NULL },

    { ngx_string("rate_limit_headers"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_word,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_rate_limit_loc_conf_t, headers),
      &ngx_http_rate_limit_headers_words },

    { ngx_string("rate_limit_body"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_word,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_rate_limit_loc_conf_t, body),
      &ngx_http_rate_limit_body_words },

    { ngx_string("rate_limit_dry_run"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_word,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_rate_limit_loc_conf_t, dry_run),
      &ngx_http_rate_limit_dry_run_words },

    { ngx_string("rate_limit_log_level"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_word,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_rate_limit_loc_conf_t, log_level),
      &ngx_http_rate_limit_log_level_words },

    { ngx_string("rate_limit_api"),
      NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_api,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_metrics"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_rate_limit_metrics,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("rate_limit_dashboard"),
      NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_rate_limit_dashboard,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_rate_limit_module_ctx = {
    ngx_http_rate_limit_add_variables,     /* preconfiguration */
    ngx_http_rate_limit_init,              /* postconfiguration */

    ngx_http_rate_limit_create_main_conf,  /* create main configuration */
    NULL,                                  /* init main configuration */

    ngx_http_rate_limit_create_srv_conf,   /* create server configuration */
    ngx_http_rate_limit_merge_srv_conf,    /* merge server configuration */

    ngx_http_rate_limit_create_loc_conf,   /* create location configuration */
    ngx_http_rate_limit_merge_loc_conf     /* merge location configuration */
};


ngx_module_t  ngx_http_rate_limit_module = {
    NGX_MODULE_V1,
    &ngx_http_rate_limit_module_ctx,       /* module context */
    ngx_http_rate_limit_commands,          /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_rate_limit_init_module,       /* init module */
    ngx_http_rate_limit_init_process,      /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_rate_limit_exit_process,      /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};
