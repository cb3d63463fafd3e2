// Opens files without waiting, and reads them whole.
#include "directives/file.h"

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

}  // namespace

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

}  // namespace rate_limit
