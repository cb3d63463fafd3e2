// Reads the files that directives name.
#include "configuration/file.h"

#include <cerrno>

namespace rate_limit {
namespace {

ngx_err_t read_all(ngx_fd_t fd, std::size_t most, std::string* content) {
    std::size_t size = 0;
    content->resize(most + 1);
    while (size <= most) {
        const ssize_t part = ngx_read_fd(fd, content->data() + size, content->size() - size);
        if (part < 0) {
            return ngx_errno;
        }
        if (part == 0) {
            break;
        }
        size += static_cast<std::size_t>(part);
    }
    content->resize(size);
    return size > most ? EFBIG : 0;
}

// Reads a regular file. Returns 0 or an error of the system, EFBIG for a file of more than `most` bytes.
ngx_err_t read_file(const ngx_str_t& name, std::size_t most, std::string* content, ngx_file_info_t* info) {
    const ngx_fd_t fd = ngx_open_file(name.data, NGX_FILE_RDONLY | O_NONBLOCK, NGX_FILE_OPEN, 0);
    if (fd == NGX_INVALID_FILE) {
        return ngx_errno;
    }
    ngx_err_t error = ngx_fd_info(fd, info) == NGX_FILE_ERROR ? ngx_errno : 0;
    if (error == 0 && !ngx_is_file(info)) {
        error = ngx_is_dir(info) ? NGX_EISDIR : NGX_EINVAL;
    }
    if (error == 0) {
        error = read_all(fd, most, content);
    }
    ngx_close_file(fd);
    return error;
}

}  // namespace

char* read_conf_file(ngx_conf_t* cf, const ngx_command_t* cmd, const ngx_str_t& word, const ngx_str_t& name,
                     std::size_t most, const char* accepted, std::string* content, ngx_file_info_t* info) {
    ngx_str_t path = name;
    if (ngx_conf_full_name(cf->cycle, &path, 1) != NGX_OK) {
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    const ngx_err_t error = read_file(path, most, content, info);
    if (error == EFBIG) {
        return refuse(cf, cmd, "\"%V\" is too long, it must be %s of at most %uz bytes", &word, accepted,
                      most);
    }
    if (error != 0) {
        log_directive(NGX_LOG_EMERG, cf, error, cmd, "\"%V\" cannot be read, it must be %s", &word, accepted);
        return static_cast<char*>(NGX_CONF_ERROR);
    }
    return nullptr;
}

}  // namespace rate_limit
