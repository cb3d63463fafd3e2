// A growing byte buffer that keeps its memory for the next use.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace rate_limit::redis {

// After an allocation has failed, failed() is true until clear(), and the content is incomplete.
class Buffer {
  public:
    Buffer() = default;
    ~Buffer() { std::free(data_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    void clear() {
        size_ = 0;
        failed_ = false;
    }

    // Appends `size` uninitialized bytes and returns their address; null if memory is exhausted.
    char* extend(std::size_t size) {
        if (size_ + size > room_ && !grow(size_ + size)) {
            failed_ = true;
            return nullptr;
        }
        char* at = data_ + size_;
        size_ += size;
        return at;
    }

    void append(std::string_view text) {
        char* at = extend(text.size());
        if (at != nullptr && !text.empty()) {
            std::memcpy(at, text.data(), text.size());
        }
    }

    void swap(Buffer& other) {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(room_, other.room_);
        std::swap(failed_, other.failed_);
    }

    // Drops all but the first `size` bytes.
    void cut(std::size_t size) { size_ = size; }

    bool failed() const { return failed_; }
    std::size_t size() const { return size_; }
    char* data() { return data_; }
    std::string_view view() const { return {data_, size_}; }

  private:
    bool grow(std::size_t need) {
        std::size_t room = room_ < 256 ? 256 : room_;
        while (room < need) {
            room *= 2;
        }
        void* data = std::realloc(data_, room);
        if (data == nullptr) {
            return false;
        }
        data_ = static_cast<char*>(data);
        room_ = room;
        return true;
    }

    char* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t room_ = 0;
    bool failed_ = false;
};

}  // namespace rate_limit::redis
