// nginx's arrays and lists in range-based loops.
#pragma once

#include "nginx/ngx.h"

namespace rate_limit {

template <class T>
struct Range {
    T* first;
    T* last;

    T* begin() const { return first; }
    T* end() const { return last; }
};

// The elements of an array of T. Adding an element to the array ends the validity of the range.
template <class T>
Range<T> elements(const ngx_array_t& array) {
    auto* first = static_cast<T*>(array.elts);
    return {first, first + array.nelts};
}

// The elements of an array of pointers to T.
template <class T>
Range<T*> pointers(const ngx_array_t& array) {
    return elements<T*>(array);
}

// The elements of a list of T.
template <class T>
class ListRange {
  public:
    struct Iterator {
        const ngx_list_part_t* part;  // null at the end
        ngx_uint_t index;

        void skip_empty_parts() {
            while (part != nullptr && index == part->nelts) {
                part = part->next;
                index = 0;
            }
        }
        Iterator& operator++() {
            index++;
            skip_empty_parts();
            return *this;
        }
        bool operator!=(const Iterator& other) const { return part != other.part || index != other.index; }
        T& operator*() const { return static_cast<T*>(part->elts)[index]; }
    };

    explicit ListRange(const ngx_list_t& list) : list_(list) {}

    Iterator begin() const {
        Iterator first = {&list_.part, 0};
        first.skip_empty_parts();
        return first;
    }
    Iterator end() const { return {nullptr, 0}; }

  private:
    const ngx_list_t& list_;
};

template <class T>
ListRange<T> elements(const ngx_list_t& list) {
    return ListRange<T>(list);
}

}  // namespace rate_limit
