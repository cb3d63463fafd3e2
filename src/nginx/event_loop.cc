// Connects hiredis to nginx's events. No other file includes both.
#include "nginx/event_loop.h"

#include <hiredis/async.h>
#include <poll.h>

#include <vector>

#include "connection/tls.h"
#include "nginx/ngx.h"

namespace rate_limit {
namespace {

// In a debug build, nginx logs an event and expects the head of a connection as the data of the event.
struct Identity {
    void* data = nullptr;
    ngx_event_t* read = nullptr;
    ngx_event_t* write = nullptr;
    ngx_socket_t fd = static_cast<ngx_socket_t>(-1);
};

// A timer, or a task for the end of the current turn of the event loop. One list has all alarms of a process.
class NginxAlarm final : public redis::Alarm {
  public:
    NginxAlarm(redis::Loop::Handler handler, void* self, bool timer, bool holds)
        : handler_(handler), self_(self), timer_(timer) {
        identity_.data = this;
        event_.data = &identity_;
        event_.handler = ring;
        event_.log = ngx_cycle->log;
        event_.cancelable = holds ? 0 : 1;
        if (first != nullptr) {
            first->previous_ = this;
        }
        next_ = first;
        first = this;
    }
    ~NginxAlarm() override {
        NginxAlarm::disarm();
        (previous_ != nullptr ? previous_->next_ : first) = next_;
        if (next_ != nullptr) {
            next_->previous_ = previous_;
        }
    }
    NginxAlarm(const NginxAlarm&) = delete;
    NginxAlarm& operator=(const NginxAlarm&) = delete;

    void arm(redis::Milliseconds after) override {
        if (!timer_) {
            ngx_post_event(&event_, &ngx_posted_events);
            return;
        }
        if (event_.timer_set) {
            ngx_del_timer(&event_);
        }
        ngx_add_timer(&event_, static_cast<ngx_msec_t>(after));
    }

    void disarm() override {
        if (event_.timer_set) {
            ngx_del_timer(&event_);
        }
        if (event_.posted) {
            ngx_delete_posted_event(&event_);
        }
    }

    bool armed() const override { return event_.timer_set || event_.posted; }

    void hold(bool holds) override { event_.cancelable = holds ? 0 : 1; }

    // Calls the handler of one alarm that is due; false if there is none.
    static bool ring_due() {
        for (NginxAlarm* alarm = first; alarm != nullptr; alarm = alarm->next_) {
            if (alarm->due()) {
                alarm->disarm();
                ring(&alarm->event_);
                return true;
            }
        }
        return false;
    }

  private:
    bool due() const {
        return event_.posted ||
               (event_.timer_set && static_cast<ngx_msec_int_t>(event_.timer.key - ngx_current_msec) <= 0);
    }

    static void ring(ngx_event_t* event) {
        const auto* alarm = static_cast<NginxAlarm*>(static_cast<Identity*>(event->data)->data);
        alarm->handler_(alarm->self_);
    }

    Identity identity_;
    ngx_event_t event_ = {};
    redis::Loop::Handler handler_;
    void* self_;
    bool timer_;
    NginxAlarm* next_ = nullptr;
    NginxAlarm* previous_ = nullptr;

    static NginxAlarm* first;
};

NginxAlarm* NginxAlarm::first = nullptr;

// A hiredis context and nginx's connection of its socket. hiredis owns the socket.
struct Attachment {
    redisAsyncContext* context;
    ngx_connection_t* connection;
    ngx_event_t flush;  // writes the collected output at the end of a turn
    bool* freed;        // set if a handler frees the context; null outside of handlers
    bool writing;       // hiredis is writing to the socket
    Attachment* next;   // in the list of all
    Attachment* previous;
};

Attachment* first_attachment = nullptr;

Attachment* attachment_of(void* data) { return static_cast<Attachment*>(data); }

// hiredis requests the event again after every packet, and nginx keeps an event until it is deleted. Events
// are level-triggered, because hiredis may leave data in the socket.
void add_event(ngx_event_t* event, ngx_int_t kind) {
    if (!event->active) {
        ngx_add_event(event, kind, NGX_LEVEL_EVENT);
    }
}

void delete_event(ngx_event_t* event, ngx_int_t kind) {
    if (event->active) {
        ngx_del_event(event, kind, 0);
    }
}

void add_read(void* data) { add_event(attachment_of(data)->connection->read, NGX_READ_EVENT); }
void delete_read(void* data) { delete_event(attachment_of(data)->connection->read, NGX_READ_EVENT); }
void delete_write(void* data) { delete_event(attachment_of(data)->connection->write, NGX_WRITE_EVENT); }

// Collects the output of one turn of the event loop in one write at its end. Waits for a write event only if
// the socket is still connecting or has just accepted only a part of the output.
void add_write(void* data) {
    Attachment* attachment = attachment_of(data);
    const bool connected = (attachment->context->c.flags & REDIS_CONNECTED) != 0;
    if (connected && !attachment->writing) {
        ngx_post_event(&attachment->flush, &ngx_posted_events);
        return;
    }
    add_event(attachment->connection->write, NGX_WRITE_EVENT);
}

void clean_up(void* data) {
    Attachment* attachment = attachment_of(data);
    ngx_connection_t* connection = attachment->connection;
    attachment->context->ev.data = nullptr;
    attachment->context->ev.addRead = nullptr;
    attachment->context->ev.delRead = nullptr;
    attachment->context->ev.addWrite = nullptr;
    attachment->context->ev.delWrite = nullptr;
    attachment->context->ev.cleanup = nullptr;
    delete_event(connection->read, NGX_READ_EVENT);
    delete_event(connection->write, NGX_WRITE_EVENT);
    ngx_event_t* events[] = {connection->read, connection->write, &attachment->flush};
    for (ngx_event_t* event : events) {
        if (event->posted) {
            ngx_delete_posted_event(event);
        }
    }
    ngx_free_connection(connection);
    connection->fd = static_cast<ngx_socket_t>(-1);
    if (attachment->freed != nullptr) {
        *attachment->freed = true;
    }
    (attachment->previous != nullptr ? attachment->previous->next : first_attachment) = attachment->next;
    if (attachment->next != nullptr) {
        attachment->next->previous = attachment->previous;
    }
    ngx_free(attachment);
}

// All connections of a process share OpenSSL's error queue, so it is cleared before and after a read.
void handle_read(ngx_event_t* event) {
    auto* attachment = attachment_of(static_cast<ngx_connection_t*>(event->data)->data);
    const bool tls = attachment->context->c.privctx != nullptr;
    if (tls) {
        redis::forget_tls_errors();
    }
    redisAsyncHandleRead(attachment->context);
    if (tls) {
        redis::forget_tls_errors();
    }
}

void write_now(Attachment* attachment) {
    bool freed = false;
    attachment->freed = &freed;
    attachment->writing = true;
    const bool tls = attachment->context->c.privctx != nullptr;
    if (tls) {
        redis::forget_tls_errors();
    }
    redisAsyncHandleWrite(attachment->context);
    if (tls) {
        redis::forget_tls_errors();
    }
    if (!freed) {
        attachment->freed = nullptr;
        attachment->writing = false;
    }
}

void handle_write(ngx_event_t* event) {
    write_now(attachment_of(static_cast<ngx_connection_t*>(event->data)->data));
}

void handle_flush(ngx_event_t* event) {
    Attachment* attachment = attachment_of(static_cast<ngx_connection_t*>(event->data)->data);
    // If a write event is pending, its handler writes the output.
    if (!attachment->connection->write->active) {
        write_now(attachment);
    }
}

bool is_attached(const Attachment* attachment) {
    const Attachment* each = first_attachment;
    while (each != nullptr && each != attachment) {
        each = each->next;
    }
    return each != nullptr;
}

// Writes the collected output of all connections.
void flush_all() {
    for (Attachment* each = first_attachment; each != nullptr;) {
        if (!each->flush.posted) {
            each = each->next;
            continue;
        }
        ngx_delete_posted_event(&each->flush);
        handle_flush(&each->flush);
        each = first_attachment;  // handle_flush() may have freed connections
    }
}

// Waits up to a millisecond for the sockets, and handles their events. False if none was ready.
bool poll_all() {
    std::vector<pollfd> polls;
    std::vector<Attachment*> polled;
    for (Attachment* each = first_attachment; each != nullptr; each = each->next) {
        const int wanted =
            (each->connection->read->active ? POLLIN : 0) | (each->connection->write->active ? POLLOUT : 0);
        polls.push_back({each->context->c.fd, static_cast<short>(wanted), 0});
        polled.push_back(each);
    }
    if (poll(polls.data(), polls.size(), 1) <= 0) {
        return false;
    }
    for (std::size_t i = 0; i < polls.size(); i++) {
        const bool ended = (polls[i].revents & (POLLERR | POLLHUP)) != 0;
        if ((ended || (polls[i].revents & POLLOUT) != 0) && is_attached(polled[i]) &&
            polled[i]->connection->write->active) {
            write_now(polled[i]);
        }
        if ((ended || (polls[i].revents & POLLIN) != 0) && is_attached(polled[i]) &&
            polled[i]->connection->read->active) {
            handle_read(polled[i]->connection->read);
        }
    }
    return true;
}

class NginxLoop final : public redis::Loop {
  public:
    redis::Alarm* make_timer(Handler handler, void* self, bool holds) override {
        return new NginxAlarm(handler, self, true, holds);
    }

    redis::Alarm* make_task(Handler handler, void* self) override {
        return new NginxAlarm(handler, self, false, true);
    }

    bool attach(redisAsyncContext* context) override {
        auto* attachment = static_cast<Attachment*>(ngx_calloc(sizeof(Attachment), ngx_cycle->log));
        ngx_connection_t* connection =
            attachment != nullptr ? ngx_get_connection(context->c.fd, ngx_cycle->log) : nullptr;
        if (connection == nullptr) {
            ngx_free(attachment);
            return false;
        }
        attachment->context = context;
        attachment->connection = connection;
        attachment->next = first_attachment;
        if (first_attachment != nullptr) {
            first_attachment->previous = attachment;
        }
        first_attachment = attachment;
        connection->data = attachment;
        connection->log = ngx_cycle->log;
        connection->read->handler = handle_read;
        connection->read->log = ngx_cycle->log;
        connection->write->handler = handle_write;
        connection->write->log = ngx_cycle->log;
        attachment->flush.data = connection;
        attachment->flush.handler = handle_flush;
        attachment->flush.log = ngx_cycle->log;
        context->ev.data = attachment;
        context->ev.addRead = add_read;
        context->ev.delRead = delete_read;
        context->ev.addWrite = add_write;
        context->ev.delWrite = delete_write;
        context->ev.cleanup = clean_up;
        return true;
    }

    redis::Milliseconds now() const override { return ngx_current_msec; }

    std::uint32_t random() override { return static_cast<std::uint32_t>(::random()); }

    void log(redis::Severity severity, std::string_view line) override {
        const ngx_uint_t level = severity == redis::Severity::kError     ? NGX_LOG_ERR
                                 : severity == redis::Severity::kWarning ? NGX_LOG_WARN
                                                                         : NGX_LOG_NOTICE;
        const ngx_str_t text = ngx_str(line);
        ngx_log_error(level, ngx_cycle->log, 0, "%V", &text);
    }
};

}  // namespace

redis::Loop* nginx_loop() {
    static NginxLoop loop;
    return &loop;
}

void run_nginx_loop(redis::Milliseconds most, bool (*busy)(void* self), void* self) {
    // A turn without events counts as a millisecond, so that the loop ends even if the clock does not
    // advance.
    redis::Milliseconds idle = 0;
    const ngx_msec_t began = ngx_current_msec;
    while (idle < most && ngx_current_msec - began < most && busy(self)) {
        constexpr unsigned kMostRings = 1000;
        for (unsigned i = 0; i < kMostRings && NginxAlarm::ring_due(); i++) {
        }
        flush_all();
        idle += poll_all() ? 0 : 1;
        ngx_time_update();
    }
}

}  // namespace rate_limit
